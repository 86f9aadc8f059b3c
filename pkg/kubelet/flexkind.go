package kubelet

import (
	"os"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/node"
	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/flex"
	"github.com/winkube/winkube/pkg/wake"
)

// newFlexKind creates the volume kind for flexVolume drivers; nil without a directory of drivers. Drivers see the kubelet's environment, as
// upstream's do.
func newFlexKind(cfg Config, host volume.Host, objects *kubeclient.CSIObjects, changed wake.Signal) *flex.Kind {
	if cfg.FlexDir == "" {
		return nil
	}
	return flex.New(host, flex.Parts{Dir: cfg.FlexDir, Run: command.NewPrivate(os.Environ()), Objects: objects, Changed: changed})
}

// otherKinds are the kinds of volume that are not in package kinds.
func otherKinds(csi *csiVolumes, flex *flex.Kind) []volume.Kind {
	all := csi.kinds()
	if flex != nil {
		all = append(all, flex)
	}
	return all
}

// attachable are the kinds of volume that the control plane attaches.
type attachable []node.Volumes

// newAttachable returns nil if there are none.
func newAttachable(csi *csiVolumes, flex *flex.Kind) node.Volumes {
	var all attachable
	if volumes := csi.inUse(); volumes != nil {
		all = append(all, volumes)
	}
	if flex != nil {
		all = append(all, flex)
	}
	if len(all) == 0 {
		return nil
	}
	return all
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
