package kubelet

import (
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/stats"
	"github.com/winkube/winkube/pkg/volume"
	csivolume "github.com/winkube/winkube/pkg/volume/csi"
	"github.com/winkube/winkube/pkg/volume/selinux"
	"github.com/winkube/winkube/pkg/wake"
)

// csiVolumes are the volumes of CSI drivers; nil: not on this host.
type csiVolumes struct{ kind *csivolume.Kind }

// newCSIKind creates the volume kind for CSI drivers, where they can serve.
func newCSIKind(cfg Config, host volume.Host, drivers csiDrivers, events events, changed wake.Signal) *csiVolumes {
	if cfg.Platform.NoSockets() != nil {
		return nil
	}
	parts := csivolume.Parts{
		NodeName: cfg.NodeName, Drivers: drivers, Objects: drivers.objects, Events: events, Refresh: drivers.Refresh, Again: drivers.joined, Changed: changed, Clock: clock.RealClock{},
	}
	if cfg.Platform.OS == "windows" {
		parts.Boot = cfg.Facts.BootID
	} else if parts.SELinux = selinux.Files("/"); parts.SELinux != "" {
		klog.InfoS("Mounting CSI volumes of access mode ReadWriteOncePod with the SELinux labels of their pods, where the driver supports it", "files", parts.SELinux)
	}
	return &csiVolumes{csivolume.New(host, parts)}
}

// newVolumeHealth is nil where the health of volumes is not reported.
func newVolumeHealth(cfg Config, b base, w workload) *stats.VolumeHealth {
	if !cfg.VolumeHealth || b.csiKind == nil {
		return nil
	}
	return &stats.VolumeHealth{Pods: w.pods, Volumes: b.volumes, Disks: b.disks, Events: b.events, Clock: clock.RealClock{}}
}
