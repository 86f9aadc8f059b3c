package node

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"github.com/winkube/winkube/pkg/host"
)

// attachAnnotation makes the control plane attach and detach this node's volumes. Upstream's kubelet sets it on every node.
const attachAnnotation = "volumes.kubernetes.io/controller-managed-attach-detach"

// Contract between a node and its cloud's controller manager (k8s.io/cloud-provider/api): the taint of a new node until the manager
// initializes it, and the addresses that its administrator chose.
const (
	uninitializedTaint = "node.cloudprovider.kubernetes.io/uninitialized"
	providedIPs        = "alpha.kubernetes.io/provided-node-ip"
)

// newNode is the object for registering a node.
func newNode(in Inputs) *v1.Node {
	taints := in.Config.Taints
	if in.Config.ExternalCloud {
		taints = append(slices.Clone(taints), v1.Taint{Key: uninitializedTaint, Value: "true", Effect: v1.TaintEffectNoSchedule})
	}
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        in.Config.Name,
			Labels:      desiredLabels(in.Config, in.Facts),
			Annotations: map[string]string{attachAnnotation: "true"},
		},
		Spec:   v1.NodeSpec{Taints: taints, ProviderID: in.Config.ProviderID},
		Status: Status(in),
	}
	provide(node, in.Config)
	return node
}

// provide sets or removes the annotation with the addresses chosen for the cloud; 0.0.0.0 and :: choose none. It reports whether the node
// changed.
func provide(node *v1.Node, c Config) (changed bool) {
	have, told := node.Annotations[providedIPs]
	want := c.NodeIP
	for given := range strings.SplitSeq(c.NodeIP, ",") {
		if addr, err := netip.ParseAddr(strings.TrimSpace(given)); err != nil || addr.IsUnspecified() {
			want = ""
		}
	}
	if !c.ExternalCloud || want == "" {
		delete(node.Annotations, providedIPs)
		return told
	}
	if node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	node.Annotations[providedIPs] = want
	return have != want
}

// required are the labels that keep the scheduler from sending pods for another platform.
func required(f host.Facts) map[string]string {
	return map[string]string{v1.LabelOSStable: f.OS, v1.LabelArchStable: f.Arch}
}

// desiredLabels are all labels of a new node; the user's take precedence.
func desiredLabels(c Config, f host.Facts) map[string]string {
	labels := required(f)
	labels[v1.LabelHostname] = c.Hostname
	labels[kubeletapis.LabelOS] = f.OS
	labels[kubeletapis.LabelArch] = f.Arch
	if f.WindowsBuild != 0 {
		labels[v1.LabelWindowsBuild] = fmt.Sprintf("%d.%d.%d", f.WindowsMajor, f.WindowsMinor, f.WindowsBuild)
	}
	for name, value := range c.Labels {
		labels[name] = value
	}
	return labels
}

// label sets labels on node and reports whether it changed any.
func label(node *v1.Node, labels map[string]string) (changed bool) {
	for name, value := range labels {
		if have, ok := node.Labels[name]; ok && have == value {
			continue
		}
		if node.Labels == nil {
			node.Labels = map[string]string{}
		}
		node.Labels[name], changed = value, true
	}
	return changed
}

// statusPatch is the strategic merge patch from known to want for the status subresource, which accepts labels and annotations too. It
// replaces the whole list of addresses, because its merge key, the type, is not unique.
func statusPatch(known, want *v1.Node) ([]byte, error) {
	before, after := v1.Node{ObjectMeta: known.ObjectMeta, Status: known.Status}, v1.Node{ObjectMeta: want.ObjectMeta, Status: want.Status}
	before.Status.Addresses, after.Status.Addresses = nil, nil
	oldJSON, err := json.Marshal(before)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the known node: %w", err)
	}
	newJSON, err := json.Marshal(after)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the new node: %w", err)
	}
	diff, err := strategicpatch.CreateTwoWayMergePatch(oldJSON, newJSON, v1.Node{})
	if err != nil {
		return nil, fmt.Errorf("cannot compare nodes: %w", err)
	}
	if equality.Semantic.DeepEqual(known.Status.Addresses, want.Status.Addresses) {
		return diff, nil
	}
	patch := map[string]any{}
	if err := json.Unmarshal(diff, &patch); err != nil {
		return nil, fmt.Errorf("cannot read the difference of nodes: %w", err)
	}
	status, _ := patch["status"].(map[string]any)
	if status == nil {
		status = map[string]any{}
		patch["status"] = status
	}
	list := []any{}
	for _, a := range want.Status.Addresses {
		list = append(list, a)
	}
	status["addresses"] = append(list, map[string]any{"$patch": "replace"})
	return json.Marshal(patch)
}
