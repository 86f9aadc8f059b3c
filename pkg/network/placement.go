package network

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
)

// otherNetwork is the reason of Events about pods that are on another network than new pods: the node's mode was changed while they ran.
const otherNetwork = "PodsOnOtherNetwork"

// namedPods is the maximum number of pods named in an Event on the Node.
const namedPods = 10

// placement is the engine network of one running pod.
type placement struct {
	uid                      types.UID
	namespace, name, network string
	reported                 bool         // as being on another network than new pods
	sandbox                  string       // its infra container
	addrs                    []netip.Addr // current addresses of the pod, or those before it was disconnected
	cut                      bool         // its infra container runs without an address
}

// placements record the engine network and the addresses of each running pod.
type placements struct {
	mode   Mode
	node   Node
	pods   Pods
	beside string // the engine network whose pods reach those of the current one; "": none

	mu sync.Mutex
	at map[types.UID]placement
}

func newPlacements(mode Mode, node Node, pods Pods) *placements {
	return &placements{mode: mode, node: node, pods: pods, at: map[types.UID]placement{}}
}

// observe records a pod's network and addresses. It returns its engine network, or "", and says whether the pod has moved to another network or lost
// its addresses. It does not block.
func (l *placements) observe(p *v1.Pod, o *pod.Observed) (network string, moved, cut bool) {
	now := placement{uid: p.UID, namespace: p.Namespace, name: p.Name}
	for _, s := range o.Sandboxes {
		if s.Running && now.network == "" {
			now.network, now.sandbox, now.addrs = s.Network, s.ID, s.Addresses
			now.cut = len(s.Addresses) == 0 && s.Network != noEngineNetwork // the engine does not know addresses there
		}
	}
	for _, c := range o.Containers {
		if c.State == pod.Running && len(o.Sandboxes) == 0 {
			now.network = cmp.Or(now.network, c.Network)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.network == "" || now.network == "host" || p.Spec.HostNetwork {
		delete(l.at, p.UID)
		return "", false, false
	}
	before := l.at[p.UID]
	if before.network == now.network {
		now.reported = before.reported
	}
	if now.cut && before.sandbox == now.sandbox {
		now.addrs = before.addrs
	} else if now.cut {
		now.addrs = addressesIn(p)
	}
	l.at[p.UID] = now
	return now.network, before.network != now.network, now.cut && !before.cut
}

// addressesIn are the addresses that a former agent wrote into the pod's status.
func addressesIn(p *v1.Pod) (out []netip.Addr) {
	for _, ip := range p.Status.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil {
			out = append(out, addr)
		}
	}
	return out
}

// disconnected returns the pods that belong on that network and had an address, but have none now.
func (l *placements) disconnected(network string) (out []placement) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, at := range l.at {
		if at.cut && len(at.addrs) > 0 && at.network == network {
			out = append(out, at)
		}
	}
	return out
}

// of returns the pod of an infra container.
func (l *placements) of(sandbox string) (placement, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, at := range l.at {
		if at.sandbox == sandbox {
			return at, true
		}
	}
	return placement{}, false
}

// report records Events on the pods, and on the Node with their names, that they are on another network than join, the network of new pods. They keep
// their connections. Each is reported once per run of the agent.
func (l *placements) report(join string) {
	news, all := l.misplaced(join)
	if len(news) == 0 {
		return
	}
	for _, at := range news {
		l.pods.Event(at.namespace, at.name, string(at.uid), v1.EventTypeWarning, otherNetwork, fmt.Sprintf(
			"The pod is on the engine's network %q, and new pods of this node get %q (--network-mode=%s): it may reach neither them nor services; recreate it", at.network, join, l.mode))
	}
	names, more := all, ""
	if len(names) > namedPods {
		names, more = names[:namedPods], fmt.Sprintf(" and %d others", len(all)-namedPods)
	}
	l.node.Event(v1.EventTypeWarning, otherNetwork, fmt.Sprintf("Recreate these pods, which are not on the network of this node's mode %s (%q): %s%s",
		l.mode, join, strings.Join(names, ", "), more))
}

// misplaced returns the pods on another network than join: those not reported yet, which it marks as reported, and the sorted names of all.
func (l *placements) misplaced(join string) (news []placement, names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string]bool{}
	for uid, at := range l.at {
		if at.network == join || at.network == l.beside && l.beside != "" {
			continue
		}
		all[at.namespace+"/"+at.name] = true
		if !at.reported {
			at.reported = true
			l.at[uid] = at
			news = append(news, at)
		}
	}
	return news, slices.Sorted(maps.Keys(all))
}
