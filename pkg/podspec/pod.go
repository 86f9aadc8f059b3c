package podspec

import (
	"fmt"
	"regexp"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Annotations of static pods and of their mirrors, as upstream writes them.
const (
	AnnotationHash   = "kubernetes.io/config.hash"
	AnnotationSource = "kubernetes.io/config.source"
	AnnotationSeen   = "kubernetes.io/config.seen"
)

// MirrorHash is what a static pod's mirror has to carry to be its own.
func MirrorHash(pod *v1.Pod) string { return pod.Annotations[AnnotationHash] }

// IsMirror says whether an API pod stands for a static one.
func IsMirror(pod *v1.Pod) bool { _, ok := pod.Annotations[v1.MirrorPodAnnotationKey]; return ok }

// Reference is what events of a pod are about.
func Reference(pod *v1.Pod) *v1.ObjectReference {
	return &v1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}
}

// ContainerReference is what events of a container are about: its pod, and in fieldPath where it stands.
func ContainerReference(pod *v1.Pod, name string, kind Kind) *v1.ObjectReference {
	list := map[Kind]string{Init: "initContainers", Ephemeral: "ephemeralContainers"}[kind]
	if list == "" {
		list = "containers"
	}
	ref := Reference(pod)
	ref.FieldPath = fmt.Sprintf("spec.%s{%s}", list, name)
	return ref
}

// Label names a pod in messages as upstream does.
func Label(pod *v1.Pod) string {
	return fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
}

// SystemCriticalPriority is the priority from which on pods are critical to the cluster.
const SystemCriticalPriority = 2_000_000_000

// IsStatic says that pod is static: it came from a file or URL and not from the API server.
func IsStatic(pod *v1.Pod) bool {
	source := pod.Annotations["kubernetes.io/config.source"]
	return source != "" && source != "api"
}

// Critical says that a pod keeps the node or the cluster going: it is static, or of the system's priority classes. It may take the place of
// others, and is not evicted.
func Critical(pod *v1.Pod) bool {
	return IsStatic(pod) || pod.Spec.Priority != nil && *pod.Spec.Priority >= SystemCriticalPriority
}

// ValidUID says whether a UID can be a pod's: it is part of paths and of containers' names. Those of the API server always can.
func ValidUID(uid types.UID) bool { return len(uid) <= 128 && uids.MatchString(string(uid)) }

var uids = regexp.MustCompile("^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
