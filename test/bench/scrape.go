package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"
)

// scrapeGoal is the maximum CPU time of the kubelet for one response with 100 containers.
const scrapeGoal = 100 * time.Millisecond

// scrapes are the requests that monitoring sends to a kubelet, with their number. They are far enough apart that no
// response comes from a cache.
var scrapes = []struct {
	path  string
	times int
	every time.Duration
}{
	{"/metrics/resource", 50, 1100 * time.Millisecond},
	{"/metrics/cadvisor", 50, 1100 * time.Millisecond},
	{"/stats/summary", 12, 10100 * time.Millisecond},
}

// scrape measures the kubelets' CPU time per scrape, minus their use in the same time without scrapes. Each pod has one
// container besides the sandbox.
func (b *bench) scrape(ctx context.Context, agents ...*agent) error {
	idle, err := spent(ctx, agents, func(ctx context.Context) error { return sleep(ctx, idleTime) })
	if err != nil {
		return err
	}
	for _, s := range scrapes {
		asked := slices.DeleteFunc(slices.Clone(agents), func(a *agent) bool {
			err := a.get(ctx, s.path)
			if err != nil && a == b.upstream { // the peer fails, for example on an unknown disk, and then has no figure
				fmt.Fprintf(os.Stderr, "bench: upstream's kubelet does not answer %s: %v\n", s.path, err)
			}
			return err != nil && a == b.upstream
		})
		used, err := spent(ctx, asked, func(ctx context.Context) error {
			for range s.times {
				if err := sleep(ctx, s.every); err != nil {
					return err
				}
				for _, agent := range asked {
					if err := agent.get(ctx, s.path); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		each := map[*agent]float64{}
		for _, agent := range asked {
			took := used[agent].cpu - time.Duration(float64(used[agent].wall)*float64(idle[agent].cpu)/float64(idle[agent].wall))
			each[agent] = inMS(took) / float64(s.times)
		}
		row(fmt.Sprintf("%s, goal %.0f ms", s.path, inMS(scrapeGoal)), "%.1f ms", 0, each[b.upstream], each[b.ours])
	}
	return nil
}

// use is the CPU time that a process used in a period.
type use struct{ cpu, wall time.Duration }

// spent returns the agents' use while do runs.
func spent(ctx context.Context, agents []*agent, do func(context.Context) error) (map[*agent]use, error) {
	out := map[*agent]use{}
	begin := time.Now()
	for _, agent := range agents {
		cpu, err := agent.cpu()
		if err != nil {
			return nil, err
		}
		out[agent] = use{cpu: cpu}
	}
	if err := do(ctx); err != nil {
		return nil, err
	}
	for _, agent := range agents {
		cpu, err := agent.cpu()
		if err != nil {
			return nil, err
		}
		out[agent] = use{cpu - out[agent].cpu, time.Since(begin)}
	}
	return out, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// get sends a GET request to the agent's port through the API server, as kubectl get --raw does.
func (a *agent) get(ctx context.Context, path string) error {
	_, err := a.pods.client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", a.host.Name, "proxy", path).DoRaw(ctx)
	return err
}

// scrapeAlone measures only our kubelet, with 100 pods.
func (b *bench) scrapeAlone(ctx context.Context) error {
	header()
	if _, err := b.ours.pods.run(ctx, "scraped", manySize, false); err != nil {
		return err
	}
	err := b.scrape(ctx, b.ours)
	if _, removal := b.ours.pods.remove(ctx); err == nil {
		err = removal
	}
	return err
}
