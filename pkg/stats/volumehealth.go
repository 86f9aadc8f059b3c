package stats

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/disk"
	"github.com/winkube/winkube/pkg/pod"
)

// healthPeriod is how often volumes are looked at, as upstream's kubelet does.
const healthPeriod = time.Minute

// VolumeHealth sends Events about volumes whose CSI driver says that they are not in order (feature gate CSIVolumeHealth).
type VolumeHealth struct {
	Pods    Pods
	Volumes Volumes
	Disks   PodDisks
	Events  interface {
		PodEvent(namespace, name, uid, kind, reason, message string)
	}
	Clock clock.Clock

	told map[types.UID]map[string]string // by pod and volume: what the driver said of it
}

// Run looks at all volumes every minute, until ctx ends.
func (h *VolumeHealth) Run(ctx context.Context) error {
	for {
		h.look(ctx)
		select {
		case <-h.Clock.After(healthPeriod):
		case <-ctx.Done():
			return nil
		}
	}
}

// look sends an Event for each volume of which a driver says something else than before: upstream repeats the same one each minute, and has none
// for a volume that is in order again.
func (h *VolumeHealth) look(ctx context.Context) {
	var views []pod.View
	for _, view := range h.Pods.Snapshot() {
		if view.Phase != pod.Terminated && h.hasCSI(view.Pod) {
			views = append(views, view)
		}
	}
	told := map[types.UID]map[string]string{}
	if len(views) > 0 {
		all := h.Disks.Pods(ctx, disk.Terms{Age: diskAge, Patience: patience}, nil, views)
		for _, view := range views {
			told[view.Pod.UID] = h.tell(view.Pod, all[view.Pod.UID].Volumes)
		}
	}
	h.told = told
}

// tell returns what drivers say of the volumes of p that are not in order. A volume of which nothing is known stays as it was.
func (h *VolumeHealth) tell(p *v1.Pod, all []disk.Volume) map[string]string {
	told := map[string]string{}
	for name, message := range h.told[p.UID] {
		told[name] = message
	}
	for _, v := range all {
		if v.Health == nil {
			continue
		}
		before, was := told[v.Volume]
		switch {
		case v.Health.Abnormal && (!was || before != v.Health.Message):
			told[v.Volume] = v.Health.Message
			h.event(p, v1.EventTypeWarning, "VolumeConditionAbnormal", "Volume "+v.Volume+": "+v.Health.Message)
		case !v.Health.Abnormal && was:
			delete(told, v.Volume)
			h.event(p, v1.EventTypeNormal, "VolumeConditionNormal", "Volume "+v.Volume+": The Volume returns to the healthy state")
		}
	}
	return told
}

func (h *VolumeHealth) event(p *v1.Pod, kind, reason, message string) {
	h.Events.PodEvent(p.Namespace, p.Name, string(p.UID), kind, reason, message)
}

// csiPlugin is the kind of volumes of CSI drivers. Those of in-tree kinds that have moved there are of it, too.
const csiPlugin = "kubernetes.io/csi"

func (h *VolumeHealth) hasCSI(p *v1.Pod) bool {
	for i := range p.Spec.Volumes {
		if h.Volumes.Plugin(p, &p.Spec.Volumes[i]) == csiPlugin {
			return true
		}
	}
	return false
}
