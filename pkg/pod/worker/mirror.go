package worker

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/podspec"
)

// mirrorOf returns the mirror pod of a static pod: a copy owned by this node, as the NodeRestriction admission plugin requires.
func mirrorOf(pod *v1.Pod, node *v1.Node) *v1.Pod {
	mirror := pod.DeepCopy()
	mirror.UID, mirror.ResourceVersion, mirror.Generation = "", "", 0
	mirror.Annotations = maps.Clone(pod.Annotations)
	if mirror.Annotations == nil {
		mirror.Annotations = map[string]string{}
	}
	mirror.Annotations[v1.MirrorPodAnnotationKey] = podspec.MirrorHash(pod)
	mirror.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: new(true)}}
	return mirror
}
