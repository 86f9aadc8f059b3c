// Package hostport serves the hostPorts that the engine does not publish. These belong to pods on a network without port mappings (macvlan,
// ipvlan, Windows networks), to pods on a CNI network whose plugins do not map ports, or to an address family that the engine omits.
//
//	pod.Observed --Routes--> proxy.Table --> proxy.Backend, in the kubelet: sockets
//	                                     --> Rules, on the kubelet's own bridge: packet filter
//
// Routes is pure. It reads the ports from the engine's data (labels of the pods' sandboxes), so that a restarted agent serves them before
// it has reached the API server.
package hostport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/wake"
)

// Reasons of Events on pods.
const (
	reasonNotServed = "HostPortNotServed"
	reasonServed    = "HostPortServed"
)

// recheck is the interval of comparisons without an event, because the host's addresses may change. retry is the interval after a failure:
// no event reports that another program released a port.
const (
	recheck = 30 * time.Second
	retry   = 2 * time.Second
)

// Config is the dependencies of a Manager.
type Config struct {
	// Backend serves a Table in which each pod is a Service named by namespace and UID.
	Backend proxy.Backend
	// Rules lead clients past the Backend; nil: there are none.
	Rules *Rules
	// NodePort names the Service that has this port of protocol SCTP as a node port; "": none has. No socket holds such a port, so that rules
	// would take it from the Service. nil: no Service is known.
	NodePort func(port uint16) string
	// Event records an Event on a pod. It must not block.
	Event func(namespace, name, uid, kind, reason, message string)
	Clock clock.WithTicker
}

// Manager serves hostPorts. It implements pod.HostPorts.
type Manager struct {
	cfg  Config
	wake wake.Signal

	mu   sync.Mutex
	pods map[types.UID]served
	seen uint64 // number of pods so far
	// found says that the pods of a former agent are known, and unsure are those of them whose addresses are not: rules that
	// this agent did not write stay until each is.
	found  bool
	unsure map[types.UID]bool

	said     string    // the last error that is no pod's, which is logged once; only Run uses it
	compared time.Time // when the host's rules were last compared; only Run uses it
	idle     bool      // the Backend serves nothing, so that no change of the host concerns it; only Run uses it

	reported map[proxy.ServiceName]string // content of the last Event on each pod: what is not served; only Run uses it
}

// served is one pod with hostPorts to serve.
type served struct {
	namespace, name, uid string
	order                uint64 // order of arrival: if several pods want a port, the first gets it
	routes               []proxy.Route
}

var _ pod.HostPorts = (*Manager)(nil)

// New returns a Manager. It serves nothing before Run.
func New(cfg Config) *Manager {
	return &Manager{cfg: cfg, wake: wake.New(), pods: map[types.UID]served{}, unsure: map[types.UID]bool{}, reported: map[proxy.ServiceName]string{}}
}

// Serve implements pod.HostPorts.
func (m *Manager) Serve(uid types.UID, o pod.Observed) {
	routes := Routes(uid, o)
	m.mu.Lock()
	settled := m.settle(uid, o)
	before, known := m.pods[uid]
	had := before.routes
	if len(routes) == 0 {
		delete(m.pods, uid)
	} else {
		if !known {
			m.seen++
			before.order = m.seen
		}
		m.pods[uid] = served{o.Namespace, o.Name, string(uid), before.order, routes}
	}
	m.mu.Unlock()
	if settled || !slices.EqualFunc(had, routes, func(a, b proxy.Route) bool { return a.Equal(&b) }) {
		m.wake.Send()
	}
}

// settle records whether a pod of a former agent has its addresses, and returns whether that was the last to wait for.
func (m *Manager) settle(uid types.UID, o pod.Observed) bool {
	if ports, addresses := owner(o); len(ports) > 0 && len(addresses) == 0 && (!m.found || m.unsure[uid]) {
		m.unsure[uid] = true
		return false
	}
	waited := len(m.unsure) > 0
	delete(m.unsure, uid)
	return waited && len(m.unsure) == 0
}

// FoundAll implements pod.HostPorts.
func (m *Manager) FoundAll() {
	m.mu.Lock()
	m.found = true
	m.mu.Unlock()
	m.wake.Send()
}

// Routes returns the routes of a pod's hostPorts: those of its newest sandbox, or of its container if there are no sandboxes, while that
// runs and has an address. It is pure; the result is sorted.
func Routes(uid types.UID, o pod.Observed) []proxy.Route {
	ports, addresses := owner(o)
	var out []proxy.Route
	for _, p := range ports {
		for _, front := range fronts(p, addresses) {
			out = append(out, proxy.Route{
				Service: proxy.ServicePortName{ServiceName: proxy.ServiceName{Namespace: o.Namespace, Name: string(uid)}}, Kind: proxy.NodePort, Protocol: p.Protocol,
				Front:    netip.AddrPortFrom(front, p.Port),
				Backends: []proxy.Endpoint{{Addr: netip.AddrPortFrom(nearest(addresses, front.Is4()), p.ContainerPort), Local: true}},
			})
		}
	}
	slices.SortFunc(out, func(a, b proxy.Route) int {
		return strings.Compare(string(a.Protocol)+a.Front.String(), string(b.Protocol)+b.Front.String())
	})
	return slices.CompactFunc(out, func(a, b proxy.Route) bool { return a.Protocol == b.Protocol && a.Front == b.Front })
}

// owner returns the hostPorts and addresses of the sandbox or container that owns the pod's network.
func owner(o pod.Observed) ([]pod.HostPort, []netip.Addr) {
	for _, s := range o.Sandboxes { // newest first
		if s.Running {
			return s.HostPorts, s.Addresses
		}
	}
	for _, c := range o.Containers {
		if c.State == pod.Running && len(o.Sandboxes) == 0 {
			return c.HostPorts, c.Addresses
		}
	}
	return nil, nil
}

// fronts are the host addresses of p: its hostIP, or without one the unspecified address of each family that the pod has.
func fronts(p pod.HostPort, addresses []netip.Addr) (out []netip.Addr) {
	if len(addresses) == 0 {
		return nil
	}
	if p.IP.IsValid() && !p.IP.IsUnspecified() {
		return []netip.Addr{p.IP}
	}
	for _, all := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		has := slices.ContainsFunc(addresses, func(a netip.Addr) bool { return a.Is4() == all.Is4() })
		if has && (!p.IP.IsValid() || p.IP == all) {
			out = append(out, all)
		}
	}
	return out
}

// nearest is the pod's address of the given family, or of the other one if it has none.
func nearest(addresses []netip.Addr, is4 bool) netip.Addr {
	if i := slices.IndexFunc(addresses, func(a netip.Addr) bool { return a.Is4() == is4 }); i >= 0 {
		return addresses[i]
	}
	return addresses[0]
}

// Run serves until ctx ends, and then returns nil.
func (m *Manager) Run(ctx context.Context) error {
	timer := m.cfg.Clock.NewTimer(recheck)
	defer timer.Stop()
	for {
		wait := recheck
		if !m.sync(ctx) {
			wait = retry
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		case <-timer.C():
		}
	}
}

// sync serves what is wanted now, and reports the pods whose ports cannot be served. It returns false if there are any.
func (m *Manager) sync(ctx context.Context) bool {
	m.mu.Lock()
	pods, sure := maps.Clone(m.pods), m.found && len(m.unsure) == 0
	m.mu.Unlock()
	table, taken := tableOf(pods, m.cfg.NodePort)
	asked := map[proxy.ServiceName]served{}
	for _, p := range pods {
		asked[p.routes[0].Service.ServiceName] = p
	}
	err := errors.Join(taken...)
	if len(table.Routes) > 0 || !m.idle {
		served := m.cfg.Backend.Sync(ctx, table, nil)
		m.idle = len(table.Routes) == 0 && served == nil
		err = errors.Join(err, served)
	}
	if m.cfg.Rules != nil && sure {
		err = errors.Join(err, m.lead(ctx, table, err))
	}
	failed, other := complaints(err)
	if other == nil {
		m.said = ""
	} else if text := other.Error(); text != m.said && ctx.Err() == nil {
		m.said = text
		klog.ErrorS(other, "Cannot serve all hostPorts; trying again", "every", retry)
	}
	m.report(asked, failed)
	return other == nil && len(failed) == 0
}

// lead writes the rules for what the Backend serves. SCTP has rules alone, so that without them it is not served.
func (m *Manager) lead(ctx context.Context, table *proxy.Table, err error) error {
	not := map[proxy.FrontKey]bool{}
	failed, _ := proxy.RouteErrors(err)
	for _, e := range failed {
		not[e.Route.Key()] = true
	}
	routes := slices.DeleteFunc(slices.Clone(table.Routes), func(r proxy.Route) bool { return not[r.Key()] })
	now := m.cfg.Clock.Now()
	compare := now.Sub(m.compared) >= recheck
	if compare {
		m.compared = now
	}
	wrong := m.cfg.Rules.Set(ctx, routes, compare)
	if wrong == nil {
		return nil
	}
	errs := []error{wrong}
	for _, r := range routes {
		if r.Protocol == v1.ProtocolSCTP {
			errs = append(errs, &proxy.RouteError{Route: r, Err: wrong})
		}
	}
	return errors.Join(errs...)
}

// ServicesChanged has the Manager compare hostPorts with node ports and ClusterIPs. It does not block.
func (m *Manager) ServicesChanged() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.pods) > 0 {
		m.wake.Send()
	}
}

// tableOf is the pods' routes. A front that several pods want goes to the first pod, and one that nodePort knows to the Service; the others
// get errors.
func tableOf(pods map[types.UID]served, nodePort func(uint16) string) (*proxy.Table, []error) {
	table, holders, taken := &proxy.Table{}, map[proxy.FrontKey]served{}, []error(nil)
	for _, p := range slices.SortedFunc(maps.Values(pods), func(a, b served) int { return cmp.Compare(a.order, b.order) }) {
		var routes []proxy.Route
		for _, r := range p.routes {
			if holder, is := holders[r.Key()]; is {
				taken = append(taken, &proxy.RouteError{Route: r, Err: fmt.Errorf("pod %s/%s has it", holder.namespace, holder.name)})
				continue
			}
			if r.Protocol == v1.ProtocolSCTP && nodePort != nil {
				if service := nodePort(r.Front.Port()); service != "" {
					taken = append(taken, &proxy.RouteError{Route: r, Err: fmt.Errorf("it is the node port of Service %s: want another", service)})
					continue
				}
			}
			holders[r.Key()] = p
			routes = append(routes, r)
		}
		table.Set(p.routes[0].Service.ServiceName, routes, nil)
	}
	return table, taken
}

// report records an Event on each pod whose hostPorts changed state since its last Event.
func (m *Manager) report(asked map[proxy.ServiceName]served, failed map[proxy.ServiceName][]string) {
	for name, p := range asked {
		message := strings.Join(slices.Compact(slices.Sorted(slices.Values(failed[name]))), "; ")
		if message == m.reported[name] {
			continue
		}
		if m.reported[name] = message; message == "" {
			delete(m.reported, name)
			m.cfg.Event(p.namespace, p.name, p.uid, v1.EventTypeNormal, reasonServed, "All hostPorts of the pod are served now")
			continue
		}
		klog.InfoS("Cannot serve a pod's hostPorts", "pod", klog.KRef(p.namespace, p.name), "reason", message)
		m.cfg.Event(p.namespace, p.name, p.uid, v1.EventTypeWarning, reasonNotServed, message)
	}
	maps.DeleteFunc(m.reported, func(name proxy.ServiceName, _ string) bool { _, is := asked[name]; return !is })
}

// complaints returns the errors of single pods as text; other has the rest.
func complaints(err error) (failed map[proxy.ServiceName][]string, other error) {
	failed = map[proxy.ServiceName][]string{}
	routes, rest := proxy.RouteErrors(err)
	for _, e := range routes {
		r := e.Route
		failed[r.Service.ServiceName] = append(failed[r.Service.ServiceName], fmt.Sprintf("hostPort %d/%s%s: %v", r.Front.Port(), r.Protocol, at(r.Front.Addr()), e.Err))
	}
	return failed, errors.Join(rest...)
}

// at formats the address of a port; "" if it has no specific address.
func at(a netip.Addr) string {
	if a.IsUnspecified() {
		return ""
	}
	return " at " + a.String()
}
