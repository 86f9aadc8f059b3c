package pod

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotations of static pods and of their mirrors, as upstream writes them.
const (
	annotationHash   = "kubernetes.io/config.hash"
	annotationSource = "kubernetes.io/config.source"
	annotationSeen   = "kubernetes.io/config.seen"
)

// mirrorHash is what a static pod's mirror has to carry to be its own.
func mirrorHash(pod *v1.Pod) string { return pod.Annotations[annotationHash] }

// isMirror says whether an API pod stands for a static one.
func isMirror(pod *v1.Pod) bool { _, ok := pod.Annotations[v1.MirrorPodAnnotationKey]; return ok }

// mirrorOf makes the mirror pod of a static pod: the same, owned by this node (the NodeRestriction admission asks for that).
func mirrorOf(pod *v1.Pod, node *v1.Node) *v1.Pod {
	mirror := pod.DeepCopy()
	mirror.UID, mirror.ResourceVersion, mirror.Generation = "", "", 0
	mirror.Annotations = maps.Clone(pod.Annotations)
	if mirror.Annotations == nil {
		mirror.Annotations = map[string]string{}
	}
	mirror.Annotations[v1.MirrorPodAnnotationKey] = mirrorHash(pod)
	mirror.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: new(true)}}
	return mirror
}
