package stats

import (
	"context"
	"sync"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/cgroup"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/pod"
)

// compute measures containers with the Host Compute Service of Windows. For containers that it does not know, those of another runtime, it asks the
// engine. All containers of a collection are measured together, with limited concurrency.
type compute struct {
	host   Host
	engine Engine

	mu    sync.Mutex
	found map[string]measured // in this collection
}

type measured struct {
	sample Sample
	net    []Interface
	err    error
}

// atOnce is how many containers are measured in parallel.
const atOnce = 16

// prepare measures the containers with these ids, in parallel.
func (m *compute) prepare(ctx context.Context, ids []string) {
	m.found = make(map[string]measured, len(ids))
	var group errgroup.Group
	group.SetLimit(atOnce)
	for _, id := range ids {
		group.Go(func() error {
			one := m.one(ctx, id)
			m.mu.Lock()
			defer m.mu.Unlock()
			m.found[id] = one
			return nil
		})
	}
	_ = group.Wait() // each has its own error
}

func (m *compute) one(ctx context.Context, id string) measured {
	if s, err := m.host.Container(id); err == nil {
		out := measured{sample: Sample{CPU: s.CPU, Memory: s.Commit, WorkingSet: s.PrivateWorkingSet}}
		for _, e := range s.Endpoints {
			out.net = append(out.net, Interface{Name: e.ID, RxBytes: e.RxBytes, RxErrors: e.RxDropped, TxBytes: e.TxBytes, TxErrors: e.TxDropped})
		}
		return out
	}
	u, err := m.engine.Usage(ctx, id)
	return measured{sample: Sample{CPU: u.CPU, Memory: u.Memory, WorkingSet: u.WorkingSet}, err: err}
}

func (m *compute) container(_ context.Context, _ types.UID, c *pod.Container, _ bool) (Sample, *Sample, error) {
	one := m.found[c.ID]
	return one.sample, nil, one.err
}

func (m *compute) interfaces(c *pod.Container) ([]Interface, error) {
	if c != nil {
		return m.found[c.ID].net, nil
	}
	all, err := m.host.Adapters()
	return ordered(all), err
}

func (m *compute) detail(*containerUsage) (*cgroup.Detail, string) { return nil, "" }

func (m *compute) oomKills(string) *uint64 { return nil }

func (m *compute) devices() map[string]string { return nil }

func (m *compute) system() (systemUsage, error) { return systemUsage{}, nil }

// ordered returns the adapters with traffic, that of the default route first. A filter that is bound to an adapter has its name as well.
func ordered(all []host.Adapter) (out []Interface) {
	seen := map[string]bool{}
	for _, a := range all {
		one := Interface{Name: a.Name, RxBytes: a.RxBytes, RxErrors: a.RxErrors, TxBytes: a.TxBytes, TxErrors: a.TxErrors}
		switch {
		case !a.Up || a.Loopback || seen[a.Name] || a.RxBytes+a.TxBytes == 0:
		case a.Default:
			out = append([]Interface{one}, out...)
		default:
			out = append(out, one)
		}
		seen[a.Name] = true
	}
	return out
}
