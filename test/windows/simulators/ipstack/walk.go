package ipstack

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/winkube/winkube/test/windows/simulators/iphelper"
)

// Question asks whether a client gets an answer from the address that it sends to.
type Question struct {
	From Place
	To   netip.AddrPort
	UDP  bool
	// Service says that the address is a Service's: another program's answer counts as No.
	Service bool
}

// Answer is the result of a Question.
type Answer struct {
	Verdict Verdict
	Sees    string   // the client address that the endpoint sees
	Hops    []string // the steps on the way
}

// walk is one packet on its way.
type walk struct {
	*Host
	q    Question
	src  netip.Addr
	sees string
	hops []string
}

func (w *walk) hop(format string, args ...any) { w.hops = append(w.hops, fmt.Sprintf(format, args...)) }

func (w *walk) no(format string, args ...any) Verdict {
	w.hop(format, args...)
	return No
}

func (w *walk) unknown(format string, args ...any) Verdict {
	w.hop(format, args...)
	return Unknown
}

// worse returns the worse verdict of two ways. A client may get either.
func worse(a, b Verdict) Verdict {
	for _, v := range []Verdict{No, Unknown} {
		if a == v || b == v {
			return v
		}
	}
	return Yes
}

// Ask answers a Question.
func (h *Host) Ask(q Question) Answer {
	w := &walk{Host: h, q: q}
	var v Verdict
	switch q.From {
	case Pod:
		v = w.fromPod()
	case Self:
		v = w.fromSelf()
	default:
		w.src = h.Peer
		if q.From == Outside {
			w.src = netip.MustParseAddr("192.0.2.77")
		}
		w.sees = "the client's address"
		v = w.fromWire()
	}
	if v != Yes {
		w.sees = ""
	}
	return Answer{v, w.sees, w.hops}
}

// fromSelf handles a packet from a host program. Packets for the host's own addresses never leave it, so that neither host model nor firewall
// applies.
func (w *walk) fromSelf() Verdict {
	to := w.q.To
	if b := w.balancer(to, w.q.UDP); b != nil {
		if b.host {
			return w.no("a node port in HNS does not answer the node itself (Kubernetes, \"Networking on Windows\", limitations)")
		}
		if w.Build <= 17763 {
			return w.no("HNS of Server 2019 has no load balancers for the host itself (Kubernetes 1.18, \"Intro to Windows support\": \"Accessing service VIPs from nodes will be available with a future release\")")
		}
		return w.unknown("whether HNS' load balancers serve the host itself is documented for no Windows after Server 2019")
	}
	if k := w.holder(to.Addr()); k != nil {
		w.src, w.sees = to.Addr(), "the node's address"
		w.hop("%s is the host's own, on %q: the packet does not leave the host", to.Addr(), k.Name)
		return w.socket(to, false)
	}
	return w.sends(to)
}

// sends handles what the host sends to others, with the source address of the interface that it leaves through (RFC 6724; SkipAsSource excludes
// addresses).
func (w *walk) sends(to netip.AddrPort) Verdict {
	if e := w.podAt(to.Addr()); e != nil && w.networkOf(e).Type == overlayType {
		if !w.hostRoute(e) {
			return w.no("the host reaches no pod of an overlay without a policy HostRoute (hcsshim hcnnetwork.go)")
		}
		w.sees = "the node's address"
		w.hop("the host sends to %s by the overlay's policy HostRoute", to)
		return Yes
	}
	best, tie, found := w.lookup(to.Addr(), nil)
	switch {
	case !found:
		return w.no("the host has no route to %s", to.Addr())
	case tie:
		return w.unknown("two routes to %s are as good as each other, one is %s", to.Addr(), best)
	case best.route.Prefix.Bits() == 0 && w.inside(to.Addr()):
		return w.no("the host has only its way out to %s, and nothing out there has that address", to.Addr())
	}
	if via := best.route.Via; !via.IsUnspecified() && w.holder(via) != nil {
		return w.no("the route %s leads to the host itself", best)
	}
	i := w.named(best.route.Interface)
	at := slices.IndexFunc(i.Addresses, func(p netip.Prefix) bool { return !i.Skipped[p.Addr()] && p.Addr().Is4() == to.Addr().Is4() })
	if at < 0 {
		return w.no("the interface of the route %s has no address that may be a source", best)
	}
	w.sees = "the node's address"
	w.hop("the host sends to %s: %s", to, best)
	return Yes
}

// inside reports whether an address belongs to the cluster.
func (h *Host) inside(addr netip.Addr) bool {
	return slices.ContainsFunc(h.Cluster, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// fromWire handles a packet from another host.
func (w *walk) fromWire() Verdict {
	to := w.q.To
	uplink := w.named(w.Adapter)
	if b := w.balancer(to, w.q.UDP); b != nil {
		w.hop("%s takes it in the virtual switch", b)
		return w.balance(b, nil)
	}
	if e := w.podAt(to.Addr()); e != nil && w.networkOf(e).Type == overlayType {
		w.hop("it comes through the tunnel to HNS, which delivers it")
		return Yes
	}
	if e := w.podAt(to.Addr()); e != nil && w.networkOf(e).Type == "NAT" {
		return w.no("WinNAT gives what the pod answers the host's address: the client waits for another")
	}
	if to.Addr().IsUnspecified() {
		to = netip.AddrPortFrom(w.Node, to.Port())
	}
	return w.arrive(uplink, to)
}

// arrive handles a packet that the host receives on an interface.
func (w *walk) arrive(i *iphelper.Interface, to netip.AddrPort) Verdict {
	s := settings(i, to.Addr())
	k := w.holder(to.Addr())
	switch {
	case k == nil:
		return w.forward(i, to)
	case k.Name == i.Name:
		w.hop("%q receives it for its own address", i.Name)
	case s.WeakReceive:
		w.hop("%q receives it for an address of %q: weak host receive", i.Name, k.Name)
	case s.Forwarding:
		// According to Microsoft's Set-NetIPInterface, packets that arrive there can be forwarded to other interfaces. That this reaches the address of
		// another interface of the same host is users' experience with two HNS networks (microsoft/WSL#4288).
		w.hop("%q receives it for an address of %q: it forwards", i.Name, k.Name)
	default:
		// TechNet Magazine, The Cable Guy, September 2007.
		return w.no("%q drops a packet for an address of %q: it is a strong host, neither receives as a weak host nor forwards", i.Name, k.Name)
	}
	return w.socket(to, true)
}

// forward handles a packet that is not for the host.
func (w *walk) forward(i *iphelper.Interface, to netip.AddrPort) Verdict {
	if !settings(i, to.Addr()).Forwarding {
		return w.no("%q drops a packet that is not for the host: it does not forward", i.Name)
	}
	best, _, found := w.lookup(to.Addr(), nil)
	if !found {
		return w.no("the host has no route to %s", to.Addr())
	}
	if via := best.route.Via; !via.IsUnspecified() && w.holder(via) != nil {
		return w.no("the route %s leads to the host itself", best)
	}
	if best.route.Prefix.Bits() == 0 && w.inside(to.Addr()) {
		return w.no("%q forwards it by the way out, and nothing out there has %s", i.Name, to.Addr())
	}
	w.hop("%q forwards it: %s", i.Name, best)
	if best.route.Prefix.Bits() > 0 && w.inside(to.Addr()) || w.podAt(to.Addr()) != nil {
		return Yes
	}
	return w.unknown("it leaves with the address %s: whether routers out there know the way back is not the host's to say", w.src)
}

// socket handles a packet for the host itself: the firewall, the socket that receives it, what it does, and the answer's way back.
func (w *walk) socket(to netip.AddrPort, filtered bool) Verdict {
	l := w.listener(to, w.q.UDP)
	if l == nil {
		return w.no("nothing listens at %s", to)
	}
	if filtered {
		if rule := w.blocked(l, to); rule != "" {
			return w.no("Windows Firewall blocks %s there: rule %q", l.Owner, rule)
		}
		if !l.Admits && !w.admitted(l, to.Port()) {
			return w.no("Windows Firewall has no rule that lets %s receive (incoming connections are blocked by default)", l.Owner)
		}
	}
	w.hop("%s has it, listening at %s", l.Owner, l.Addr)
	if v := w.comesBack(to.Addr()); v != Yes {
		return v
	}
	if w.q.Service && l.Targets == nil {
		return w.no("%s is not the Service", l.Owner)
	}
	if l.Targets == nil {
		return Yes
	}
	v := Yes
	for _, target := range l.Targets {
		v = worse(v, w.sends(target))
	}
	return v
}

// comesBack handles the answer's way back. In the strong host model a packet with an interface's address leaves only through that interface, unless
// that interface has weak host send (TechNet Magazine, The Cable Guy, September 2007) or forwards (Antrea's Helper.psm1,
// New-KubeProxyServiceInterface, which sets nothing else).
func (w *walk) comesBack(from netip.Addr) Verdict {
	k := w.holder(from)
	if w.holder(w.src) != nil {
		return Yes
	}
	only, s := k, settings(k, from)
	if s.WeakSend || s.Forwarding {
		only = nil
	}
	best, tie, found := w.lookup(w.src, only)
	switch {
	case !found:
		return w.no("the answer does not leave: %q has %s and no route to %s, and is a strong host, which neither sends as a weak host nor forwards", k.Name, from, w.src)
	case tie:
		return w.unknown("two routes back to %s are as good as each other, one is %s", w.src, best)
	case !best.route.Via.IsUnspecified() && w.holder(best.route.Via) != nil:
		return w.no("the route back %s leads to the host itself", best)
	}
	w.hop("the answer from %s leaves: %s", from, best)
	return Yes
}

// admitted reports whether a Windows Firewall rule lets a socket receive. A rule names a program by its path and a service by its
// name.
func (h *Host) admitted(l *Listener, port uint16) bool {
	for _, r := range h.firewall {
		if r.Direction == "in" && r.Action == "allow" && h.names(r.Program, r.Service, l.Owner) && portIn(r.LocalPort, port) {
			return true
		}
	}
	return false
}
