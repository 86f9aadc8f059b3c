package kinds

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// thisNode is a Node without a status, or with one.
type thisNode v1.Node

func (n *thisNode) Node() *v1.Node { return (*v1.Node)(n) }

func TestMemorySize(t *testing.T) {
	node := &thisNode{}
	k := &emptyDir{node: node}
	v := v1.Volume{VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}}
	p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}}
	if got := k.memorySize(p, &v); got != 0 {
		t.Errorf("nothing known: %d", got)
	}
	*node = thisNode{Status: v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourceMemory: resource.MustParse("4Gi")}}}
	if got := k.memorySize(p, &v); got != 4<<30 {
		t.Errorf("node: %d", got)
	}
	p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")}
	if got := k.memorySize(p, &v); got != 1<<30 {
		t.Errorf("pod: %d", got)
	}
	v.EmptyDir.SizeLimit = new(resource.MustParse("64Mi"))
	if got := k.memorySize(p, &v); got != 64<<20 {
		t.Errorf("limit: %d", got)
	}
}

func TestDownward(t *testing.T) {
	k := downwardAPI{node: &thisNode{Status: v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("3"), v1.ResourceMemory: resource.MustParse("4Gi")}}}}
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "uid-1", Labels: map[string]string{"app": "web", "a": `quo"te`}},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c"}}}}
	p.Spec.Containers[0].Resources = v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1250m")}, Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse("33Mi")}}
	p.Annotations = map[string]string{"example.com/x": "line1\nline2"}
	for in, want := range map[string]string{
		"metadata.name": "web", "metadata.uid": "uid-1", "metadata.labels": "a=\"quo\\\"te\"\napp=\"web\"", "metadata.labels['app']": "web", "metadata.labels['none']": "",
		"metadata.annotations['example.com/x']": "line1\nline2", "metadata.annotations": `example.com/x="line1\nline2"`,
		"limits.cpu": "2", "limits.cpu/1m": "1250", "limits.memory": "4294967296", "limits.memory/1Mi": "4096", "requests.memory/1Mi": "33", "requests.memory/1Gi": "1", "requests.cpu": "0",
		"status.podIP": "!fieldPath", "limits.gpu": "!resource", "max.cpu": "!resource",
	} {
		item := v1.DownwardAPIVolumeFile{Path: "f"}
		if strings.HasPrefix(in, "metadata") || strings.HasPrefix(in, "status") {
			item.FieldRef = &v1.ObjectFieldSelector{FieldPath: in}
		} else {
			name, divisor, _ := strings.Cut(in, "/")
			item.ResourceFieldRef = &v1.ResourceFieldSelector{ContainerName: "c", Resource: name}
			if divisor != "" {
				item.ResourceFieldRef.Divisor = resource.MustParse(divisor)
			}
		}
		got, err := k.read(p, []v1.DownwardAPIVolumeFile{item}, nil)
		if part, bad := strings.CutPrefix(want, "!"); bad {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v", in, err)
			}
			continue
		}
		if err != nil || string(got["f"].Data) != want {
			t.Errorf("%s: %q, %v, want %q", in, got["f"].Data, err, want)
		}
	}
}
