package drivers

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// nodeIDs is the annotation of a Node with a JSON map from drivers to the ids by which they know the node.
const nodeIDs = "csi.volume.kubernetes.io/nodeid"

// migrated are the in-tree kinds that upstream's kubelet 1.36 leaves to CSI drivers, in the order of the annotation.
// Source: kubernetes 1.36 pkg/volume/csi/csi_plugin.go.
var migrated = []string{"kubernetes.io/aws-ebs", "kubernetes.io/azure-disk", "kubernetes.io/azure-file", "kubernetes.io/cinder",
	"kubernetes.io/gce-pd", "kubernetes.io/portworx-volume", "kubernetes.io/vsphere-volume"}

// collisionError is that a driver says another topology than the Node's labels.
type collisionError string

func (e collisionError) Error() string { return string(e) }

// missingLabels are the labels of a topology that node lacks. Another value of one is an error with upstream's words.
func missingLabels(node *v1.Node, topology map[string]string) (map[string]string, error) {
	missing := map[string]string{}
	for _, key := range (info{topology: topology}).keys() {
		switch have, ok := node.Labels[key]; {
		case ok && have != topology[key]:
			return nil, collisionError(fmt.Sprintf("detected topology value collision: driver reported %q:%q but existing label is %q:%q", key, topology[key], key, have))
		case !ok:
			missing[key] = topology[key]
		}
	}
	return missing, nil
}

// nodePatch is the patch that gives node what a driver says, or takes back its id where want is nil; nil: node is right. It fails if the Node has
// changed meanwhile.
func nodePatch(node *v1.Node, name string, want *info) ([]byte, error) {
	ids := map[string]string{}
	if have := node.Annotations[nodeIDs]; have != "" {
		if err := json.Unmarshal([]byte(have), &ids); err != nil {
			if want == nil {
				return nil, nil
			}
			ids = map[string]string{} // only kubelets write it: what cannot be read is of no use to anyone
		}
	}
	metadata := map[string]any{"resourceVersion": node.ResourceVersion}
	id, has := ids[name]
	switch {
	case want == nil && has:
		delete(ids, name)
		metadata["annotations"] = map[string]any{nodeIDs: encode(ids)}
	case want != nil && id != want.nodeID:
		ids[name] = want.nodeID
		metadata["annotations"] = map[string]any{nodeIDs: encode(ids)}
	}
	if want != nil {
		labels, err := missingLabels(node, want.topology)
		if err != nil {
			return nil, err
		}
		if len(labels) > 0 {
			metadata["labels"] = labels
		}
	}
	if len(metadata) == 1 {
		return nil, nil
	}
	return json.Marshal(map[string]any{"metadata": metadata})
}

// encode is the annotation's value; nil, which removes it, for none.
func encode(ids map[string]string) any {
	if len(ids) == 0 {
		return nil
	}
	data, _ := json.Marshal(ids) // a map of strings always can be
	return string(data)
}

// newCSINode is the CSINode of a node without drivers.
func newCSINode(node *v1.Node) *storage.CSINode {
	return &storage.CSINode{
		ObjectMeta: metav1.ObjectMeta{
			Name:            node.Name,
			Annotations:     map[string]string{v1.MigratedPluginsAnnotationKey: strings.Join(migrated, ",")},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: v1.SchemeGroupVersion.Version, Kind: "Node", Name: node.Name, UID: node.UID}},
		},
		Spec: storage.CSINodeSpec{Drivers: []storage.CSINodeDriver{}},
	}
}

// owns says whether n belongs to node, and not to one that had its name before.
func owns(node *v1.Node, n *storage.CSINode) bool {
	return slices.ContainsFunc(n.OwnerReferences, func(owner metav1.OwnerReference) bool {
		return owner.Kind == "Node" && owner.Name == node.Name && owner.UID == node.UID
	})
}

// annotate gives n the annotation about migrated kinds and says whether it had another.
func annotate(n *storage.CSINode) (changed bool) {
	have := strings.Split(n.Annotations[v1.MigratedPluginsAnnotationKey], ",")
	if slices.Sort(have); slices.Equal(have, migrated) {
		return false
	}
	if n.Annotations == nil {
		n.Annotations = map[string]string{}
	}
	n.Annotations[v1.MigratedPluginsAnnotationKey] = strings.Join(migrated, ",")
	return true
}

// csiNodes are the states to which have is updated one after the other, so that it shows a driver as it is, or not at all where want is nil. They are
// two where an entry changes in what the API server does not let change: then it goes before it comes.
func csiNodes(have *storage.CSINode, name string, want *info) []*storage.CSINode {
	next := have.DeepCopy()
	changed := annotate(next)
	at := slices.IndexFunc(next.Spec.Drivers, func(d storage.CSINodeDriver) bool { return d.Name == name })
	if want == nil {
		if at >= 0 {
			next.Spec.Drivers, changed = slices.Delete(next.Spec.Drivers, at, at+1), true
		}
		return some(changed, next)
	}
	entry := storage.CSINodeDriver{Name: name, NodeID: want.nodeID, TopologyKeys: want.keys()}
	if want.most > 0 {
		most := int32(want.most) // checkInfo bounds it
		entry.Allocatable = &storage.VolumeNodeResources{Count: &most}
	}
	if at < 0 {
		next.Spec.Drivers = append(next.Spec.Drivers, entry)
		return some(true, next)
	}
	old := next.Spec.Drivers[at]
	keys := slices.Sorted(slices.Values(old.TopologyKeys))
	if old.NodeID == entry.NodeID && slices.Equal(keys, entry.TopologyKeys) {
		entry.TopologyKeys = old.TopologyKeys // the order may not change either
		next.Spec.Drivers[at] = entry
		return some(changed || count(old) != count(entry), next)
	}
	without := next.DeepCopy()
	without.Spec.Drivers = slices.Delete(without.Spec.Drivers, at, at+1)
	next.Spec.Drivers[at] = entry
	return []*storage.CSINode{without, next}
}

func some(changed bool, n *storage.CSINode) []*storage.CSINode {
	if !changed {
		return nil
	}
	return []*storage.CSINode{n}
}

// count is how many volumes of a driver a node can have; -1: no limit.
func count(d storage.CSINodeDriver) int32 {
	if d.Allocatable == nil || d.Allocatable.Count == nil {
		return -1
	}
	return *d.Allocatable.Count
}
