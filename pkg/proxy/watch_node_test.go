package proxy

import (
	"maps"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTrimNode: trim keeps the parts of a Node that this package and package routes read: its ranges, its addresses, its
// tunnel end and its kubelet's port.
func TestTrimNode(t *testing.T) {
	n := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{"flannel.alpha.coreos.com/public-ip": "10.1.0.11", "big": "gone"}},
		Spec:       v1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24"}},
		Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.1.0.11"}},
			DaemonEndpoints: v1.NodeDaemonEndpoints{KubeletEndpoint: v1.DaemonEndpoint{Port: 11250}},
			Images:          []v1.ContainerImage{{SizeBytes: 1}}},
	}
	object, err := trim(n)
	if err != nil {
		t.Fatal(err)
	}
	got := object.(*v1.Node)
	if !maps.Equal(got.Annotations, map[string]string{"flannel.alpha.coreos.com/public-ip": "10.1.0.11"}) || len(got.Spec.PodCIDRs) != 1 ||
		len(got.Status.Addresses) != 1 || got.Status.Images != nil || NodeHoldingOf(got).KubeletPort != 11250 {
		t.Errorf("%+v", got)
	}
}
