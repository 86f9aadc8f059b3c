package worker_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/podtest"
)

// plugins is a pod.Attacher that assigns each sandbox the same address.
type plugins struct {
	log *podtest.Log

	mu       sync.Mutex
	failures int // remaining failures of Attach
	attached map[string]bool
}

func (n *plugins) Attachments(_ *v1.Pod, engine pod.Observed) pod.Attachments {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := pod.Attachments{}
	for _, s := range engine.Sandboxes {
		if a := n.attached[s.ID]; a {
			out[pod.EngineID(s.ID)] = pod.Attachment{Addresses: []netip.Addr{netip.MustParseAddr("10.9.0.9")}}
		} else if s.Running {
			out[pod.EngineID(s.ID)] = pod.Attachment{Waits: true}
		}
	}
	return out
}

func (n *plugins) Attach(_ context.Context, p *v1.Pod, to pod.Member) error {
	defer time.Sleep(time.Millisecond) // in the bubble's time: what follows is later in the log
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.failures > 0 {
		n.failures--
		return errors.New("no address is left")
	}
	n.log.Printf("network: attach %s of %s in %s", to.ID, p.Name, to.SandboxID)
	n.attached[to.ID] = true
	return nil
}

func (n *plugins) Detach(_ context.Context, from pod.Member) error {
	defer time.Sleep(time.Millisecond)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.attached[from.ID] {
		n.log.Printf("network: detach %s", from.ID)
	}
	delete(n.attached, from.ID)
	return nil
}

// TestNetworkIsAttached: containers start once the sandbox has its network, with its address. A failure is retried. Before a sandbox ends,
// it releases its network.
func TestNetworkIsAttached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(linux)
		network := &plugins{log: w.log, failures: 1, attached: map[string]bool{}}
		w.attacher = network
		w.begin()
		defer w.kill()
		w.api.Create(parsePod(t, []byte(timedPod)))
		time.Sleep(20 * time.Second)
		up := w.log.Take()
		order := []string{"Failed to create pod sandbox: no address is left", "network: attach", "start-container"}
		for i, want := range order {
			if at := strings.Index(up, want); at < 0 || i > 0 && at < strings.Index(up, order[i-1]) {
				t.Errorf("want %q in this order:\n%s", order, up)
			}
		}
		var name string
		for _, v := range w.manager.Snapshot() {
			name = v.Pod.Name
			if ip := v.Pod.Status.PodIP; ip != "10.9.0.9" {
				t.Errorf("the pod's address is %q", ip)
			}
		}
		if err := w.api.Remove(name, 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		down := w.log.Take()
		if detach, stop := strings.Index(down, "network: detach"), strings.Index(down, "stop-sandbox"); detach < 0 || stop < detach {
			t.Errorf("want the network back before the sandbox stops:\n%s", down)
		}
		w.check(t)
	})
}
