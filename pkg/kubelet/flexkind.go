package kubelet

import (
	"context"
	"os"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/node"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/flex"
	"github.com/winkube/winkube/pkg/volume/san"
	"github.com/winkube/winkube/pkg/wake"
)

// newFlexKind creates the volume kind for flexVolume drivers; nil without a directory of drivers. Drivers see the kubelet's environment, as
// upstream's do.
func newFlexKind(cfg Config, host volume.Host, events events, objects *kubeclient.CSIObjects, changed wake.Signal) *flex.Kind {
	if cfg.FlexDir == "" {
		return nil
	}
	return flex.New(host, flex.Parts{
		NodeName: cfg.NodeName, Dir: cfg.FlexDir, Run: command.NewPrivate(os.Environ()), Objects: objects, Events: events, Clock: clock.RealClock{}, Changed: changed,
	})
}

// nodeKind is a kind whose volumes are attached to the node, and which releases those that no pod uses.
type nodeKind interface {
	volume.Kind
	node.Volumes
	Run(ctx context.Context) error
}

// newNodeKinds creates the kinds whose volumes are attached to the node.
func newNodeKinds(cfg Config, host volume.Host, drivers csiDrivers, events events, objects *kubeclient.CSIObjects, changed wake.Signal) (*csiVolumes, []nodeKind) {
	csi := newCSIKind(cfg, host, drivers, events, changed)
	var all []nodeKind
	if csi != nil {
		all = append(all, csi.kind)
	}
	if flex := newFlexKind(cfg, host, events, objects, changed); flex != nil {
		all = append(all, flex)
	}
	for _, disks := range san.Kinds(host, objects, changed) {
		all = append(all, disks)
	}
	return csi, all
}

// volumeKinds are the same kinds for the Manager.
func volumeKinds(kinds []nodeKind) []volume.Kind {
	all := make([]volume.Kind, len(kinds))
	for i, k := range kinds {
		all[i] = k
	}
	return all
}

// attachable are the kinds of volume that the control plane attaches.
type attachable []nodeKind

// newAttachable returns nil if there are none.
func newAttachable(kinds []nodeKind) node.Volumes {
	if len(kinds) == 0 {
		return nil
	}
	return attachable(kinds)
}

// InUse implements node.Volumes.
func (a attachable) InUse() []v1.UniqueVolumeName {
	out := []v1.UniqueVolumeName{}
	for _, kind := range a {
		out = append(out, kind.InUse()...)
	}
	return out
}

// Reported implements node.Volumes.
func (a attachable) Reported(node *v1.Node) {
	for _, kind := range a {
		kind.Reported(node)
	}
}
