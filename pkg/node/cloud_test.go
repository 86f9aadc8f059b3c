package node

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// TestNewNodeOfCloud: what a node of a cloud registers with, for each setting of its addresses.
func TestNewNodeOfCloud(t *testing.T) {
	const chosen = "10.1.2.3,fd00::3"
	for _, test := range []struct{ nodeIP, addresses, annotation string }{
		{"", "Hostname n1", ""},
		{chosen, "InternalIP 10.1.2.3, InternalIP fd00::3, Hostname n1", chosen},
		{"::", "InternalIP 10.1.2.3, InternalIP fd00::3, Hostname n1", ""}, // addresses found meanwhile
	} {
		config := Config{ExternalCloud: true, NodeIP: test.nodeIP, ProviderID: "moon://1", Taints: []v1.Taint{{Key: "own", Effect: v1.TaintEffectNoSchedule}}}
		node := newNode(inputs(t, linuxFacts(), config))
		if got := taintsOf(node); got != "own=:NoSchedule node.cloudprovider.kubernetes.io/uninitialized=true:NoSchedule" || node.Spec.ProviderID != "moon://1" {
			t.Errorf("--node-ip=%s: taints %s, provider %q", test.nodeIP, got, node.Spec.ProviderID)
		}
		if got := addressesOf(node); got != test.addresses {
			t.Errorf("--node-ip=%s: addresses %s, want %s", test.nodeIP, got, test.addresses)
		}
		if got := node.Annotations["alpha.kubernetes.io/provided-node-ip"]; got != test.annotation {
			t.Errorf("--node-ip=%s: the cloud is told %q, want %q", test.nodeIP, got, test.annotation)
		}
	}
	alone := newNode(inputs(t, linuxFacts(), Config{NodeIP: chosen}))
	if _, told := alone.Annotations[providedIPs]; told || len(alone.Spec.Taints) > 0 || len(alone.Status.Addresses) != 3 {
		t.Errorf("without a cloud: %+v", alone)
	}
}

func taintsOf(node *v1.Node) string {
	var out []string
	for _, t := range node.Spec.Taints {
		out = append(out, fmt.Sprintf("%s=%s:%s", t.Key, t.Value, t.Effect))
	}
	return strings.Join(out, " ")
}

func addressesOf(node *v1.Node) string {
	var out []string
	for _, a := range node.Status.Addresses {
		out = append(out, fmt.Sprint(a.Type, " ", a.Address))
	}
	return strings.Join(out, ", ")
}

// TestNodeOfCloud: what the cloud's controller manager set stays, and the manager gets the chosen address, while there is a cloud.
func TestNodeOfCloud(t *testing.T) {
	r := newRig(t, Config{ExternalCloud: true, NodeIP: "10.0.0.1"})
	r.start()
	r.registered()
	r.expect("POST /api/v1/nodes")
	theirs := []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.0.0.1"}, {Type: v1.NodeExternalIP, Address: "192.0.2.9"}, {Type: v1.NodeHostName, Address: "n1"}}
	r.api.edit(func(n *v1.Node) { n.Spec.Taints, n.Status.Addresses = nil, theirs })
	r.quiet()
	if n := r.api.Node(); len(n.Spec.Taints) > 0 || addressesOf(n) != "InternalIP 10.0.0.1, ExternalIP 192.0.2.9, Hostname n1" || n.Annotations[providedIPs] != "10.0.0.1" {
		t.Errorf("taints %s, addresses %s, annotations %v", taintsOf(n), addressesOf(n), n.Annotations)
	}

	later := newRig(t, Config{NodeIP: "10.0.0.1"})
	later.api.put(r.api.Node())
	later.start()
	later.expect("PATCH")
	later.registered()
	if n := later.api.Node(); n.Annotations[providedIPs] != "" || addressesOf(n) != "InternalIP 10.0.0.1, Hostname n1" {
		t.Errorf("the cloud is gone: addresses %s, annotations %v", addressesOf(n), n.Annotations)
	}
}
