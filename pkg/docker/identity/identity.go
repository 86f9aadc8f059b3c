// Package identity determines which pod a container of the engine belongs to: the labels and names that this agent gives to its containers, and how
// it recognizes them. It does no I/O.
//
//	pod, container, attempt --ContainerName, Seal--> name and labels of a request
//	names and labels of a list, inspect or event --Node.Own--> Container, or ErrForeign
package identity

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/filters"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/winkube/winkube/pkg/podspec"
)

// Container identifies a container of the engine: which sandbox, or which attempt of which pod's container.
type Container struct {
	UID            types.UID
	Namespace, Pod string
	Name           string // of the container in the spec; SandboxName for a sandbox
	Attempt        int
}

// EngineName is the engine's name of the container: k8s_<container>_<pod>_<namespace>_<uid>_<attempt>.
func (c Container) EngineName() string {
	return fmt.Sprintf("k8s_%s_%s_%s_%s_%d", c.Name, c.Pod, c.Namespace, c.UID, c.Attempt)
}

// ContainerName is the engine's name of one attempt of a pod's container.
func ContainerName(p *v1.Pod, name string, attempt int) string {
	return Container{UID: p.UID, Namespace: p.Namespace, Pod: p.Name, Name: name, Attempt: attempt}.EngineName()
}

// Node is the value of LabelNode on everything that this agent creates. Agents with different names can share an engine. The empty Node is read-only:
// it sees the pods of every node, and does not clean up after agents.
type Node string

// Bystander says that n is empty: the containers may belong to another agent.
func (n Node) Bystander() bool { return n == "" }

// Filter selects the containers of n: those of one pod, or all if uid is "".
func (n Node) Filter(uid types.UID) filters.Args {
	args := filters.NewArgs(filters.Arg("label", LabelNode+"="+string(n)))
	if n.Bystander() {
		args = filters.NewArgs(filters.Arg("label", LabelNode))
	}
	if uid != "" {
		args.Add("label", LabelPodUID+"="+string(uid))
	}
	return args
}

// Holders selects the containers that n created to read images.
func (n Node) Holders() filters.Args {
	return filters.NewArgs(filters.Arg("label", LabelNode+"="+string(n)), filters.Arg("label", LabelType+"="+TypeHolder))
}

// Others selects the containers that have the labels of a pod: ours and those of other kubelets.
func Others() filters.Args { return filters.NewArgs(filters.Arg("label", LabelPodUID)) }

// OfAnother says that another kubelet made a container for a pod: dockershim, or cri-dockerd for upstream's.
func OfAnother(labels map[string]string) bool {
	_, ours := labels[LabelNode]
	return !ours && labels[LabelPodUID] != "" && (labels[LabelType] == TypeSandbox || labels[LabelType] == TypeContainer)
}

// ErrForeign says that by its labels a container does not belong to this node's pods.
var ErrForeign = errors.New("not a container of this node's pods")

// Own identifies a container by all of its engine names and its labels. Labels alone are no proof: every container has those of its image, and an
// image can have any of our labels. It cannot choose the name, which repeats the same data. Errors other than ErrForeign say what is wrong with a
// container that claims to be ours.
func (n Node) Own(names []string, labels map[string]string) (Container, error) {
	node, ok := labels[LabelNode]
	if !ok || node != string(n) && !n.Bystander() || IsHolder(names, labels) {
		return Container{}, ErrForeign
	}
	c, err := parse(labels)
	if err == nil && !slices.ContainsFunc(names, func(name string) bool { return bears(name, c.EngineName()) }) {
		err = fmt.Errorf("its name is %s; by its labels it would be %s", strings.Join(names, ", "), c.EngineName())
	}
	return c, err
}

// parse reads the labels and checks that each has the format that this agent writes.
func parse(labels map[string]string) (Container, error) {
	o := Container{
		UID: types.UID(labels[LabelPodUID]), Namespace: labels[LabelPodNamespace], Pod: labels[LabelPodName], Name: labels[LabelContainerName],
	}
	wrong := func(label, want string) (Container, error) {
		return Container{}, fmt.Errorf("label %s is %.80q; want %s", label, labels[label], want)
	}
	sandbox := labels[LabelType] == TypeSandbox
	attempt, err := strconv.Atoi(labels[LabelRestartCount])
	o.Attempt = attempt
	switch {
	case !sandbox && labels[LabelType] != TypeContainer:
		return wrong(LabelType, TypeSandbox+" or "+TypeContainer)
	case !podspec.ValidUID(o.UID):
		return wrong(LabelPodUID, "a pod's UID")
	case len(validation.IsDNS1123Subdomain(o.Pod)) > 0:
		return wrong(LabelPodName, "a pod's name")
	case len(validation.IsDNS1123Label(o.Namespace)) > 0:
		return wrong(LabelPodNamespace, "a namespace's name")
	case sandbox && o.Name != SandboxName:
		return wrong(LabelContainerName, SandboxName)
	case !sandbox && len(validation.IsDNS1123Label(o.Name)) > 0:
		return wrong(LabelContainerName, "a container's name")
	case err != nil || attempt < 0 || attempt >= math.MaxInt32 || strconv.Itoa(attempt) != labels[LabelRestartCount]:
		return wrong(LabelRestartCount, "a count of restarts")
	}
	return o, nil
}

// again is the suffix that create adds to a name that the engine wrongly considers taken.
var again = regexp.MustCompile("^_[0-9a-f]+$")

// bears says whether the engine's name of a container is the wanted one.
func bears(name, want string) bool {
	rest, ok := strings.CutPrefix(strings.TrimPrefix(name, "/"), want)
	return ok && (rest == "" || again.MatchString(rest))
}

// Purposes of holders.
const (
	HoldFiles    = "image"
	HoldAccounts = "accounts"
)

// HolderName is the name of the container that reads the image with that digest for a purpose.
func HolderName(purpose, node, digest string) string {
	return "k8s_" + purpose + "_" + node + "_" + digest
}

var digests = regexp.MustCompile("^[0-9a-f]{1,12}$")

// IsHolder says whether a container, by its labels and its name, exists to read an image.
func IsHolder(names []string, labels map[string]string) bool {
	return labels[LabelType] == TypeHolder && slices.ContainsFunc(names, func(name string) bool {
		return slices.ContainsFunc([]string{HoldFiles, HoldAccounts}, func(purpose string) bool {
			digest, ok := strings.CutPrefix(strings.TrimPrefix(name, "/"), HolderName(purpose, labels[LabelNode], ""))
			return ok && digests.MatchString(digest)
		})
	})
}
