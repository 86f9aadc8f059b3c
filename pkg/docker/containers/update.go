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

// update holds a running container to other resources. Quota and period go together, and memory with memory and swap: an engine refuses
// a memory limit above the former limit of both. A memory limit is not lowered below what is in use, which would end processes or, in
// cgroup v1, fail half-way.
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
	if want.Quota == 0 && in.HostConfig.CPUQuota > 0 { // 0 would mean: as it is
		config.CPUQuota = -1
	}
	err = a.engine.Call(ctx, "update container "+engine.ShortID(step.ID), func(ctx context.Context, c *client.Client) error {
		_, err := c.ContainerUpdate(ctx, step.ID, config)
		return err
	})
	a.cache.drop(step.ID) // engines before 1.13 send no event
	return err
}

// memoryInUse is how many bytes the container has now, page cache included, as upstream counts.
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

// resourcesOf is what the engine holds a container to; nil where that is not ours to change. Of what a host cannot limit (a kernel
// without memory cgroups) the engine keeps nothing, and what was asked for stands.
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
