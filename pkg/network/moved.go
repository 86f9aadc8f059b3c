package network

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
)

// otherNetwork is the reason of Events about pods that are on another network than new ones get: the node's mode was changed under them.
const otherNetwork = "PodsOnOtherNetwork"

// namedPods is how many pods an Event on the Node names.
const namedPods = 10

// place is the engine network of one running pod.
type place struct {
	uid                      types.UID
	namespace, name, network string
	told                     bool
	sandbox                  string       // its infra container
	addrs                    []netip.Addr // that the pod has, or had before it was cut
	cut                      bool         // its infra container runs and has no address
}

// notice remembers on which engine network a pod runs, and with which addresses. It does not block.
func (m *Manager) notice(p *v1.Pod, o *pod.Observed) {
	now := place{uid: p.UID, namespace: p.Namespace, name: p.Name}
	for _, s := range o.Sandboxes {
		if s.Running && now.network == "" {
			now.network, now.sandbox, now.addrs, now.cut = s.Network, s.ID, s.Addresses, len(s.Addresses) == 0
		}
	}
	for _, c := range o.Containers {
		if c.State == pod.Running && len(o.Sandboxes) == 0 {
			now.network = cmp.Or(now.network, c.Network)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.network == "" || now.network == "host" || p.Spec.HostNetwork {
		delete(m.places, p.UID)
		return
	}
	before := m.places[p.UID]
	if before.network == now.network {
		now.told = before.told
	}
	if now.cut && before.sandbox == now.sandbox {
		now.addrs = before.addrs
	} else if now.cut {
		now.addrs = addressesIn(p)
	}
	if m.places == nil {
		m.places = map[types.UID]place{}
	}
	m.places[p.UID] = now
	if m.err == nil && (m.state.Join != now.network && before.network != now.network || m.state.Join == now.network && now.cut && !before.cut) {
		m.Kick()
	}
}

// addressesIn are those that a former agent wrote into the pod's status.
func addressesIn(p *v1.Pod) (out []netip.Addr) {
	for _, ip := range p.Status.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil {
			out = append(out, addr)
		}
	}
	return out
}

// takenOff are the pods that should be on that network and have no address, though they are known to have had one.
func (m *Manager) takenOff(network string) (out []place) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, at := range m.places {
		if at.cut && len(at.addrs) > 0 && at.network == network {
			out = append(out, at)
		}
	}
	return out
}

// tellMoved says on pods, and on the Node with their names, that they are on another network than the node's mode makes: they keep what they
// have, and only a new pod gets the other. Each is told once in this agent's life.
func (m *Manager) tellMoved() {
	m.mu.Lock()
	join, ok := m.state.Join, m.err == nil
	news := map[types.UID]place{}
	all := map[string]bool{}
	for uid, at := range m.places {
		if !ok || join == "" || at.network == join {
			continue
		}
		all[at.namespace+"/"+at.name] = true
		if !at.told {
			news[uid] = at
			at.told = true
			m.places[uid] = at
		}
	}
	m.mu.Unlock()
	if len(news) == 0 {
		return
	}
	for uid, at := range news {
		if m.parts.PodEvent != nil {
			m.parts.PodEvent(at.namespace, at.name, string(uid), v1.EventTypeWarning, otherNetwork, fmt.Sprintf(
				"The pod is on the engine's network %q, and new pods of this node get %q (--network-mode=%s): it may reach neither them nor services; recreate it", at.network, join, m.cfg.Mode))
		}
	}
	names := slices.Sorted(maps.Keys(all))
	more := ""
	if len(names) > namedPods {
		names, more = names[:namedPods], fmt.Sprintf(" and %d others", len(all)-namedPods)
	}
	if m.parts.Event != nil {
		m.parts.Event(v1.EventTypeWarning, otherNetwork, fmt.Sprintf("Recreate the pods that are on another network than this node's mode %s makes (%q): %s%s",
			m.cfg.Mode, join, strings.Join(names, ", "), more))
	}
}
