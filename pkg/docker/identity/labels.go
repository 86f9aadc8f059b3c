package identity

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/container"

	"github.com/winkube/winkube/pkg/podspec"
)

// Labels of every container and sandbox. The io.kubernetes labels are those of upstream's dockershim, so that tools which know them continue to work.
// Labels are the only data that survives a restart of the agent: Docker cannot change them after creation.
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
	LabelUser      = "io.winkube.user"                // containerStatuses.user, see FormatUser
	LabelRecursive = "io.winkube.recursive-read-only" // "true": mounts with recursiveReadOnly IfPossible are recursive
	LabelResources = "io.winkube.resources"           // podspec.Resources at creation; only on Linux
	LabelHostPorts = "io.winkube.host-ports"          // of the container that owns the pod's network, see FormatHostPorts
	LabelBoot      = "io.winkube.boot"                // Config.Boot; missing if that is unknown
)

// OwnLabels returns all of our labels. Seal sets every one of them on each container. The caller owns the slice.
func OwnLabels() []string { return slices.Clone(ownLabels) }

var ownLabels = []string{
	LabelPodName, LabelPodNamespace, LabelPodUID, LabelContainerName, LabelType, LabelSandboxID, LabelRestartCount, LabelHash, LabelMessagePath,
	LabelMessagePolicy, LabelGrace, LabelNode, LabelKind, LabelImage, LabelImageRef, LabelMessage, LabelMessageRoot, LabelRuntime, LabelUser,
	LabelRecursive, LabelResources, LabelHostPorts, LabelBoot,
}

// Values of LabelType.
const (
	TypeSandbox   = "podsandbox"
	TypeContainer = "container"
	TypeHolder    = "holder" // reads an image; it never starts
)

// SandboxName is the container part of a sandbox's name, and its LabelContainerName.
const SandboxName = "POD"

// Seal returns the configuration to send to the engine, without changing c. The engine takes most omitted fields from the image (moby
// daemon/commit.go merge). An image must not claim a container for a pod, nor add a health check: kubelets have probes, and each check is an exec.
// docs/reference/images.md lists what else an image may set.
func Seal(c *container.Config) *container.Config {
	out := *c
	out.Labels = make(map[string]string, len(ownLabels)+len(c.Labels))
	for _, label := range ownLabels {
		out.Labels[label] = ""
	}
	maps.Copy(out.Labels, c.Labels)
	out.Healthcheck = &container.HealthConfig{Test: []string{"NONE"}}
	return &out
}

// Number reads a numeric label; 0 if it is missing or malformed.
func Number(labels map[string]string, label string) int {
	n, err := strconv.Atoi(labels[label])
	if err != nil {
		return 0
	}
	return n
}

// Kind reads LabelKind; a container without it counts as an app container.
func Kind(labels map[string]string) podspec.Kind {
	switch kind := podspec.Kind(strings.ToLower(labels[LabelKind])); kind {
	case podspec.Init, podspec.Ephemeral:
		return kind
	}
	return podspec.App
}

// ImageIDPrefix is the prefix of containerStatuses.imageID for an image that only this engine knows.
const ImageIDPrefix = "docker://"
