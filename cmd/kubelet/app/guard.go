package app

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/winkube/winkube/pkg/guard"
	"github.com/winkube/winkube/pkg/kubelet"
	"github.com/winkube/winkube/pkg/node"
)

// addGuardFlags declares what the node keeps free, and how. Names, defaults and meanings are upstream's.
func (o *options) addGuardFlags(fs *pflag.FlagSet) {
	o.eviction.Hard = node.DefaultEvictionHard(runtime.GOOS)
	fs.Var((*leastValue)(&o.eviction.Hard), "eviction-hard", "least that is left before pods are evicted at once, `memory.available<100Mi,nodefs.available<10%,...`; empty: none")
	fs.Var((*leastValue)(&o.eviction.Soft), "eviction-soft", "least that is left before pods are evicted after a time, `memory.available<1.5Gi,...`")
	fs.StringToStringVar(&o.eviction.SoftGrace, "eviction-soft-grace-period", nil, "that time, `memory.available=90s,...`")
	fs.StringToStringVar(&o.eviction.MinimumReclaim, "eviction-minimum-reclaim", nil, "how much more than the threshold is freed once something is freed, `imagefs.available=2Gi,...`")
	fs.DurationVar(&o.evictionTransition, "eviction-pressure-transition-period", 5*time.Minute, "how long the Node's condition of pressure stays after the pressure was last found")
	fs.IntVar(&o.evictionMaxGrace, "eviction-max-pod-grace-period", 0, "most `seconds` that a pod gets to stop when a soft threshold is met")
	fs.IntVar(&o.images.High, "image-gc-high-threshold", 85, "`percent` of the images' file system from which on unused images are removed; 100: never")
	fs.IntVar(&o.images.Low, "image-gc-low-threshold", 80, "`percent` of the images' file system down to which they are removed")
	fs.DurationVar(&o.images.MinAge, "minimum-image-ttl-duration", 2*time.Minute, "how long an image stays at least, from when it was first seen")
	fs.DurationVar(&o.images.MaxAge, "maximum-image-ttl-duration", 0, "how long an image stays at most that nobody uses; 0: however long")
	fs.IntVar(&o.dead.PerContainer, "maximum-dead-containers-per-container", 1, "number of containers that have ended that are kept of each beside the last; negative: all")
	fs.IntVar(&o.dead.Total, "maximum-dead-containers", -1, "number of containers that have ended that are kept on the node; negative: no limit")
	fs.DurationVar(&o.dead.MinAge, "minimum-container-ttl-duration", 0, "how long a container that has ended is kept at least")
}

// leastValue is a flag's value of signals and the least that should be left of each: signal<least, as upstream has it, or signal=least, as its
// files have it.
type leastValue map[string]string

// Set implements pflag.Value. It takes the place of what was set before.
func (v *leastValue) Set(text string) error {
	*v = leastValue{}
	for part := range strings.SplitSeq(text, ",") {
		at := strings.IndexAny(part, "<=")
		switch {
		case strings.TrimSpace(part) == "":
		case at <= 0:
			return fmt.Errorf("%q: want a signal and the least that is left, as in memory.available<100Mi", part)
		default:
			(*v)[strings.TrimSpace(part[:at])] = strings.TrimSpace(part[at+1:])
		}
	}
	return nil
}

// String implements pflag.Value, in the form of the files.
func (v *leastValue) String() string {
	var parts []string
	for _, signal := range slices.Sorted(maps.Keys(*v)) {
		parts = append(parts, signal+"="+(*v)[signal])
	}
	return strings.Join(parts, ",")
}

// Type implements pflag.Value.
func (v *leastValue) Type() string { return "thresholds" }

// windowsReserve is what Windows is left with where --system-reserved says nothing of memory: upstream's documentation asks for it, since
// Windows ends no process when memory runs out but becomes slow as a whole.
const windowsReserve = "2Gi"

// setGuard comes after setNode and before setCgroups, which take part of it.
func (o *options) setGuard(cfg *kubelet.Config) error {
	settings := o.eviction
	if merge := o.file.content.MergeDefaultEvictionSettings; merge != nil && *merge {
		settings.Hard = node.DefaultEvictionHard(cfg.Platform.OS)
		maps.Copy(settings.Hard, o.eviction.Hard)
	}
	settings.Allocatable = cfg.Platform.OS == "linux" && o.cgroupsPerQoS && slices.Contains(o.enforceAllocatable, "pods")
	thresholds, err := guard.Thresholds(settings)
	if err != nil {
		return err
	}
	if err := o.images.Check(); err != nil {
		return err
	}
	if o.evictionTransition < 0 {
		return fmt.Errorf("--eviction-pressure-transition-period=%s: want 0 or more", o.evictionTransition)
	}
	if o.evictionMaxGrace < 0 {
		return fmt.Errorf("--eviction-max-pod-grace-period=%d: want 0 or more seconds", o.evictionMaxGrace)
	}
	cfg.Guard = guard.Config{Thresholds: thresholds, Transition: o.evictionTransition, MaxGrace: time.Duration(o.evictionMaxGrace) * time.Second, Images: o.images}
	cfg.Node.EvictionHard = settings.Hard
	if o.reservesForWindows(cfg.Platform.OS) {
		cfg.Node.SystemReserved[v1.ResourceMemory] = resource.MustParse(windowsReserve)
	}
	return nil
}

// reservesForWindows says whether Windows is left with memory although nobody said how much.
func (o *options) reservesForWindows(system string) bool {
	return system == "windows" && o.systemReserved[string(v1.ResourceMemory)] == ""
}
