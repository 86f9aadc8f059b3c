package docker

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/podspec"
)

// owned says which sandbox or attempt of which pod's container a container is.
type owned struct {
	uid                       types.UID
	namespace, pod, container string
	attempt                   int
}

// name is k8s_<container>_<pod>_<namespace>_<uid>_<attempt>.
func (o owned) name() string {
	return fmt.Sprintf("k8s_%s_%s_%s_%s_%d", o.container, o.pod, o.namespace, o.uid, o.attempt)
}

// errForeign: the labels do not say that a container is a pod's on this node.
var errForeign = errors.New("not a container of this node's pods")

// own reads whose a container is by all that the engine calls it and its labels. The labels alone are not believed: anybody's container has
// those of its image, and an image can carry every label of ours. It cannot choose the name, which says the same once more. Other errors than
// errForeign say what is wrong with a container that claims to be ours.
func (e *Engine) own(names []string, labels map[string]string) (owned, error) {
	node, ok := labels[LabelNode]
	if !ok || node != e.cfg.Node && !e.bystander() || isHolder(names, labels) {
		return owned{}, errForeign
	}
	o, err := parseOwned(labels)
	if err == nil && !slices.ContainsFunc(names, func(name string) bool { return bears(name, o.name()) }) {
		err = fmt.Errorf("its name is %s; by its labels it would be %s", strings.Join(names, ", "), o.name())
	}
	return o, err
}

// parseOwned reads the labels and holds each to the form that this agent gives it. It is pure.
func parseOwned(labels map[string]string) (owned, error) {
	o := owned{
		uid: types.UID(labels[LabelPodUID]), namespace: labels[LabelPodNamespace], pod: labels[LabelPodName], container: labels[LabelContainerName],
	}
	wrong := func(label, want string) (owned, error) {
		return owned{}, fmt.Errorf("label %s is %.80q; want %s", label, labels[label], want)
	}
	sandbox := labels[LabelType] == typeSandbox
	attempt, err := strconv.Atoi(labels[LabelRestartCount])
	o.attempt = attempt
	switch {
	case !sandbox && labels[LabelType] != typeContainer:
		return wrong(LabelType, typeSandbox+" or "+typeContainer)
	case !podspec.ValidUID(o.uid):
		return wrong(LabelPodUID, "a pod's UID")
	case len(validation.IsDNS1123Subdomain(o.pod)) > 0:
		return wrong(LabelPodName, "a pod's name")
	case len(validation.IsDNS1123Label(o.namespace)) > 0:
		return wrong(LabelPodNamespace, "a namespace's name")
	case sandbox && o.container != sandboxName:
		return wrong(LabelContainerName, sandboxName)
	case !sandbox && len(validation.IsDNS1123Label(o.container)) > 0:
		return wrong(LabelContainerName, "a container's name")
	case err != nil || attempt < 0 || attempt >= math.MaxInt32 || strconv.Itoa(attempt) != labels[LabelRestartCount]:
		return wrong(LabelRestartCount, "a count of restarts")
	}
	return o, nil
}

// again is what create adds to a name that the engine wrongly holds to be taken.
var again = regexp.MustCompile("^_[0-9a-f]+$")

// bears says whether the engine's name of a container is the wanted one.
func bears(name, want string) bool {
	rest, ok := strings.CutPrefix(strings.TrimPrefix(name, "/"), want)
	return ok && (rest == "" || again.MatchString(rest))
}

// holderName is the name of a container by which an image is read for a purpose.
func holderName(purpose, node, digest string) string {
	return "k8s_" + purpose + "_" + node + "_" + digest
}

var digests = regexp.MustCompile("^[0-9a-f]{1,12}$")

// isHolder says whether a container is one that hold made, by its labels and by its name.
func isHolder(names []string, labels map[string]string) bool {
	return labels[LabelType] == typeHolder && slices.ContainsFunc(names, func(name string) bool {
		return slices.ContainsFunc([]string{holdFiles, holdAccounts}, func(purpose string) bool {
			digest, ok := strings.CutPrefix(strings.TrimPrefix(name, "/"), holderName(purpose, labels[LabelNode], ""))
			return ok && digests.MatchString(digest)
		})
	})
}

// tellStrangers names the containers that claim to be a pod's and are not, by id; each once for as long as it is there.
func (e *Engine) tellStrangers(found map[string]error) {
	e.strangersLock.Lock()
	defer e.strangersLock.Unlock()
	for id, why := range found {
		if _, told := e.strangers[id]; !told && len(found) <= maxTold {
			klog.InfoS("Ignoring a container whose labels say that it is a pod's: this agent did not make it", "container", short(id), "why", why)
		}
	}
	if len(found) > maxTold && len(e.strangers) <= maxTold {
		klog.InfoS("Ignoring containers whose labels say that they are a pod's: this agent did not make them", "containers", len(found))
	}
	e.strangers = found
}

// maxTold is how many strangers are told of one by one.
const maxTold = 20
