package network

import (
	"cmp"
	"fmt"
	"maps"
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
	namespace, name, network string
	told                     bool
}

// notice remembers on which engine network a pod runs. It does not block.
func (m *Manager) notice(p *v1.Pod, o *pod.Observed) {
	network := ""
	for _, s := range o.Sandboxes {
		if s.Running && network == "" {
			network = s.Network
		}
	}
	for _, c := range o.Containers {
		if c.State == pod.Running && len(o.Sandboxes) == 0 {
			network = cmp.Or(network, c.Network)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if network == "" || network == "host" || p.Spec.HostNetwork {
		delete(m.places, p.UID)
		return
	}
	if m.places[p.UID].network == network {
		return
	}
	if m.places == nil {
		m.places = map[types.UID]place{}
	}
	m.places[p.UID] = place{namespace: p.Namespace, name: p.Name, network: network}
	if m.err == nil && m.state.Join != network {
		m.Kick()
	}
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
