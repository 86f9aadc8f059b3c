package containers

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"

	"github.com/winkube/winkube/pkg/docker/convert"
	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/docker/identity"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// update changes the resource limits of a running container. It sets quota and period together, and memory and swap together: an engine refuses a
// memory limit above the former limit of both. It never lowers a memory limit below current usage, which would kill processes or, in cgroup v1, fail
// half-way.
func (a *Applier) update(ctx context.Context, step pod.Step) error {
	if step.Resources == nil {
		return fmt.Errorf("cannot update container %s: step has no Resources", engine.ShortID(step.ID))
	}
	in, err := a.engine.Inspect(ctx, step.ID)
	if err != nil {
		return err
	}
	want := *step.Resources
	if had := in.HostConfig.Memory; want.Memory > 0 && (had <= 0 || want.Memory < had) {
		used, err := a.memoryInUse(ctx, step.ID)
		if err != nil {
			return err
		}
		if used >= want.Memory {
			return fmt.Errorf("cannot decrease memory limits: attempting to set container %q memory limit (%d) below current usage (%d)", step.Container, want.Memory, used)
		}
	}
	var config container.UpdateConfig
	convert.LinuxResources(&config.Resources, want)
	if want.Quota == 0 && in.HostConfig.CPUQuota > 0 { // 0 would mean: unchanged
		config.CPUQuota = -1
	}
	err = a.engine.Call(ctx, "update container "+engine.ShortID(step.ID), func(ctx context.Context, c *client.Client) error {
		_, err := c.ContainerUpdate(ctx, step.ID, config)
		return err
	})
	a.cache.drop(step.ID) // engines before 1.13 send no event
	return err
}

// memoryInUse is the container's current memory usage in bytes, page cache included, as upstream counts.
func (a *Applier) memoryInUse(ctx context.Context, id string) (used int64, err error) {
	err = a.engine.Call(ctx, "read memory usage of container "+engine.ShortID(id), func(ctx context.Context, c *client.Client) error {
		answer, err := c.ContainerStatsOneShot(ctx, id)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		var stats container.StatsResponse
		if err := json.NewDecoder(answer.Body).Decode(&stats); err != nil {
			return err
		}
		used = int64(stats.MemoryStats.Usage)
		return nil
	})
	return used, err
}

// resourcesOf returns the limits that the engine enforces for a container, or nil if they are not ours to change. The engine stores no limits that
// the host cannot enforce (a kernel without memory cgroups); the requested values stand in for them.
func resourcesOf(in container.InspectResponse) *podspec.Resources {
	text := in.Config.Labels[identity.LabelResources]
	if text == "" || in.HostConfig == nil {
		return nil
	}
	asked, h := podspec.ParseResources(text), in.HostConfig.Resources
	out := podspec.Resources{
		Shares: cmp.Or(h.CPUShares, asked.Shares), Quota: max(h.CPUQuota, 0), Period: h.CPUPeriod, Memory: cmp.Or(max(h.Memory, 0), asked.Memory),
	}
	if h.CPUQuota == 0 {
		out.Quota, out.Period = asked.Quota, asked.Period
	}
	if out.Quota == 0 {
		out.Period = 0
	}
	return &out
}
