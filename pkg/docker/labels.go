package docker

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/filters"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
)

// Labels of every container and sandbox. The io.kubernetes ones are those that upstream's dockershim used, so that tools which know
// them go on working. Labels are all that survives a restart of the agent: Docker cannot change them after creation.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"
	LabelType          = "io.kubernetes.docker.type" // podsandbox or container
	LabelSandboxID     = "io.kubernetes.sandbox.id"
	LabelRestartCount  = "annotation.io.kubernetes.container.restartCount"
	LabelHash          = "annotation.io.kubernetes.container.hash"
	LabelMessagePath   = "annotation.io.kubernetes.container.terminationMessagePath"
	LabelMessagePolicy = "annotation.io.kubernetes.container.terminationMessagePolicy"
	LabelGrace         = "annotation.io.kubernetes.pod.terminationGracePeriod"

	LabelNode        = "io.winkube.node"         // Config.Node
	LabelKind        = "io.winkube.kind"         // init, app or ephemeral
	LabelImage       = "io.winkube.image"        // as in the spec
	LabelImageRef    = "io.winkube.image-ref"    // containerStatuses.imageID
	LabelMessage     = "io.winkube.message"      // host file behind the termination message path
	LabelMessageRoot = "io.winkube.message-root" // directory that the container can write to: LabelMessage is then relative to it

	LabelRuntime   = "io.winkube.runtime"             // of a sandbox: handler of the pod's RuntimeClass
	LabelUser      = "io.winkube.user"                // containerStatuses.user, see formatUser
	LabelRecursive = "io.winkube.recursive-read-only" // "true": mounts that are to be recursively read-only if possible are
	LabelResources = "io.winkube.resources"           // pod.Resources at creation; only on Linux
	LabelHostPorts = "io.winkube.host-ports"          // of who has the pod's network, see formatHostPorts
	LabelBoot      = "io.winkube.boot"                // Config.Boot; none where that is not known
)

const (
	typeSandbox   = "podsandbox"
	typeContainer = "container"
	typeHolder    = "holder" // of an image that is being read; it never starts
	sandboxName   = "POD"    // the container part of a sandbox's name
)

// labels are those of the pod's sandbox; Convert adds to them for a container.
func podLabels(p *v1.Pod, t Target) map[string]string {
	grace := int64(v1.DefaultTerminationGracePeriodSeconds)
	if p.Spec.TerminationGracePeriodSeconds != nil {
		grace = *p.Spec.TerminationGracePeriodSeconds
	}
	return map[string]string{
		LabelNode:          t.Node,
		LabelPodName:       p.Name,
		LabelPodNamespace:  p.Namespace,
		LabelPodUID:        string(p.UID),
		LabelType:          typeSandbox,
		LabelContainerName: sandboxName,
		LabelGrace:         strconv.FormatInt(grace, 10),
	}
}

// containerName is the engine's name of one attempt: k8s_<container>_<pod>_<namespace>_<uid>_<attempt>.
func containerName(p *v1.Pod, name string, attempt int) string {
	return fmt.Sprintf("k8s_%s_%s_%s_%s_%d", name, p.Name, p.Namespace, p.UID, attempt)
}

// owner reads who a container belongs to; false: none of ours.
func (e *Engine) owner(labels map[string]string) (types.UID, bool) {
	node, ok := labels[LabelNode]
	uid := labels[LabelPodUID]
	return types.UID(uid), ok && (node == e.cfg.Node || e.bystander()) && uid != ""
}

// bystander says that another agent may own the containers: pods of any node are seen, and nothing is swept.
func (e *Engine) bystander() bool { return e.cfg.Node == "" }

// ours selects this node's containers: of one pod, or with uid "" of all.
func (e *Engine) ours(uid types.UID) filters.Args {
	args := filters.NewArgs(filters.Arg("label", LabelNode+"="+e.cfg.Node))
	if e.bystander() {
		args = filters.NewArgs(filters.Arg("label", LabelNode))
	}
	if uid != "" {
		args.Add("label", LabelPodUID+"="+string(uid))
	}
	return args
}

// number reads a label that holds one; 0 where it is missing or broken.
func number(labels map[string]string, label string) int {
	n, err := strconv.Atoi(labels[label])
	if err != nil {
		return 0
	}
	return n
}

// kindOf reads LabelKind; a container without one is taken for an app.
func kindOf(labels map[string]string) pod.Kind {
	switch kind := pod.Kind(strings.ToLower(labels[LabelKind])); kind {
	case pod.Init, pod.Ephemeral:
		return kind
	}
	return pod.App
}
