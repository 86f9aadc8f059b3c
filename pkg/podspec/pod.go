package podspec

import (
	"fmt"
	"regexp"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Annotations of static pods and their mirror pods, as in upstream.
const (
	AnnotationHash   = "kubernetes.io/config.hash"
	AnnotationSource = "kubernetes.io/config.source"
	AnnotationSeen   = "kubernetes.io/config.seen"
)

// MirrorHash is the hash that a static pod's mirror pod must carry.
func MirrorHash(pod *v1.Pod) string { return pod.Annotations[AnnotationHash] }

// IsMirror reports whether an API pod is the mirror pod of a static pod.
func IsMirror(pod *v1.Pod) bool { _, ok := pod.Annotations[v1.MirrorPodAnnotationKey]; return ok }

// Reference is the object reference for Events on a pod.
func Reference(pod *v1.Pod) *v1.ObjectReference {
	return &v1.ObjectReference{
		APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}
}

// ContainerReference is the object reference for Events on a container: its pod, with the container in fieldPath.
func ContainerReference(pod *v1.Pod, name string, kind Kind) *v1.ObjectReference {
	list := map[Kind]string{Init: "initContainers", Ephemeral: "ephemeralContainers"}[kind]
	if list == "" {
		list = "containers"
	}
	ref := Reference(pod)
	ref.FieldPath = fmt.Sprintf("spec.%s{%s}", list, name)
	return ref
}

// Label formats a pod's name for messages, as upstream does.
func Label(pod *v1.Pod) string {
	return fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID)
}

// SystemCriticalPriority is the lowest priority of pods that are critical to the cluster.
const SystemCriticalPriority = 2_000_000_000

// IsStatic reports whether pod came from a file or URL rather than from the API server.
func IsStatic(pod *v1.Pod) bool {
	source := pod.Annotations["kubernetes.io/config.source"]
	return source != "" && source != "api"
}

// Critical reports whether the node or cluster depends on a pod: it is static or has a system priority class. It may preempt others and is
// not evicted.
func Critical(pod *v1.Pod) bool {
	return IsStatic(pod) || pod.Spec.Priority != nil && *pod.Spec.Priority >= SystemCriticalPriority
}

// ValidUID reports whether a UID is usable in paths and container names. Those of the API server always are.
func ValidUID(uid types.UID) bool { return len(uid) <= 128 && uids.MatchString(string(uid)) }

var uids = regexp.MustCompile("^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
