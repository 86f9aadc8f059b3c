package app

import (
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	config "k8s.io/kubelet/config/v1beta1"

	"github.com/winkube/winkube/pkg/guard"
	"github.com/winkube/winkube/pkg/node"
)

// windowsReserve is the memory reserved for Windows if --system-reserved does not mention memory. Upstream's documentation recommends that, since
// Windows kills no process when memory runs out but becomes slow as a whole.
const windowsReserve = "2Gi"

// makeGuard runs after makeNode and before makeCgroups, which uses part of its result.
func (s *settings) makeGuard() error {
	c := s.c
	settings := guard.Settings{Hard: c.EvictionHard, Soft: c.EvictionSoft, SoftGrace: c.EvictionSoftGracePeriod, MinimumReclaim: c.EvictionMinimumReclaim}
	if merge := c.MergeDefaultEvictionSettings; merge != nil && *merge {
		settings.Hard = node.DefaultEvictionHard(s.Platform.OS)
		maps.Copy(settings.Hard, c.EvictionHard)
	}
	settings.Allocatable = s.Platform.OS == "linux" && *c.CgroupsPerQOS && slices.Contains(c.EnforceNodeAllocatable, "pods")
	thresholds, err := guard.Thresholds(settings)
	if err != nil {
		return err
	}
	images := guard.ImagePolicy{High: int(*c.ImageGCHighThresholdPercent), Low: int(*c.ImageGCLowThresholdPercent),
		MinAge: c.ImageMinimumGCAge.Duration, MaxAge: c.ImageMaximumGCAge.Duration}
	if err := images.Check(); err != nil {
		return err
	}
	transition := c.EvictionPressureTransitionPeriod.Duration
	if transition < 0 {
		return fmt.Errorf("--eviction-pressure-transition-period=%s: want 0 or more", transition)
	}
	if c.EvictionMaxPodGracePeriod < 0 {
		return fmt.Errorf("--eviction-max-pod-grace-period=%d: want 0 or more seconds", c.EvictionMaxPodGracePeriod)
	}
	s.Guard = guard.Config{Thresholds: thresholds, Transition: transition, MaxGrace: time.Duration(c.EvictionMaxPodGracePeriod) * time.Second, Images: images}
	s.Node.EvictionHard = settings.Hard
	if reservesForWindows(s.Platform.OS, c) {
		s.Node.SystemReserved[v1.ResourceMemory] = resource.MustParse(windowsReserve)
	}
	return nil
}

// reservesForWindows says whether memory is reserved for Windows by default.
func reservesForWindows(system string, c *config.KubeletConfiguration) bool {
	return system == "windows" && c.SystemReserved[string(v1.ResourceMemory)] == ""
}
