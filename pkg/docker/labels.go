package docker

import (
	"maps"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/container"
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

// ownLabels are all labels of ours. seal sets every one of them on whatever this agent makes.
var ownLabels = []string{
	LabelPodName, LabelPodNamespace, LabelPodUID, LabelContainerName, LabelType, LabelSandboxID, LabelRestartCount, LabelHash, LabelMessagePath,
	LabelMessagePolicy, LabelGrace, LabelNode, LabelKind, LabelImage, LabelImageRef, LabelMessage, LabelMessageRoot, LabelRuntime, LabelUser,
	LabelRecursive, LabelResources, LabelHostPorts, LabelBoot,
}

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

// seal is the configuration as the engine gets it. Of what a request leaves out the engine takes much from the image (moby daemon/commit.go
// merge). An image is not to say whose its container is, nor to have the engine run a health check: kubelets have probes, and each check is an
// exec. What else an image may say is in docs/reference/images.md.
func seal(c *container.Config) *container.Config {
	out := *c
	out.Labels = make(map[string]string, len(ownLabels)+len(c.Labels))
	for _, label := range ownLabels {
		out.Labels[label] = ""
	}
	maps.Copy(out.Labels, c.Labels)
	out.Healthcheck = &container.HealthConfig{Test: []string{"NONE"}}
	return &out
}

// containerName is the engine's name of one attempt.
func containerName(p *v1.Pod, name string, attempt int) string {
	return owned{uid: p.UID, namespace: p.Namespace, pod: p.Name, container: name, attempt: attempt}.name()
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
