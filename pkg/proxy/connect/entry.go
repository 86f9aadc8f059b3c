package connect

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
)

// The layouts below are those that the programs read and write.

// Key is a front. IPv4 addresses are mapped to IPv6.
type Key struct {
	Addr     [16]byte
	Port     uint32 // network byte order
	Protocol uint32 // IPPROTO_TCP or IPPROTO_UDP
}

// Front is the programs' view of a front: its endpoints are in the slots below Count.
type Front struct {
	ID       uint32
	Count    uint32 // 0: refuse
	Affinity uint32 // seconds; 0: none
	Turn     uint32 // counts decisions; written by the programs
}

// Endpoint is an address and port, also of a front.
type Endpoint struct {
	Addr [16]byte
	Port uint32 // network byte order
}

// SlotKey is a slot for an endpoint that gets new traffic.
type SlotKey struct{ Front, Slot uint32 }

// MemberKey is an endpoint of a front, including draining ones. Its value is target or draining.
type MemberKey struct {
	Front uint32
	Endpoint
}

const (
	draining uint32 = 0 // keeps its existing UDP flows
	target   uint32 = 1
)

const (
	protoTCP = 6
	protoUDP = 17
)

func netPort(port uint16) uint32 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], port)
	return uint32(binary.NativeEndian.Uint16(b[:]))
}

func endpointOf(addr netip.AddrPort) Endpoint {
	return Endpoint{addr.Addr().As16(), netPort(addr.Port())}
}

// AddrPort converts e to the usual type.
func (e Endpoint) AddrPort() netip.AddrPort {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], uint16(e.Port))
	return netip.AddrPortFrom(netip.AddrFrom16(e.Addr).Unmap(), binary.BigEndian.Uint16(b[:]))
}

func (k Key) endpoint() Endpoint { return Endpoint{k.Addr, k.Port} }

func (k Key) String() string {
	return fmt.Sprintf("%s %s", map[uint32]v1.Protocol{protoTCP: v1.ProtocolTCP, protoUDP: v1.ProtocolUDP}[k.Protocol], k.endpoint().AddrPort())
}

func keyOf(r *proxy.Route) Key {
	protocol := uint32(protoTCP)
	if r.Protocol == v1.ProtocolUDP {
		protocol = protoUDP
	}
	e := endpointOf(r.Front)
	return Key{e.Addr, e.Port, protocol}
}

// Serves reports whether the endpoint for a Route can be chosen when a client connects: it must be a ClusterIP of TCP
// or UDP. The relay serves a front that drops traffic or would lead to itself, and without refuse also one without
// endpoints.
func Serves(r *proxy.Route, refuse bool) bool {
	if r.Kind != proxy.ClusterIP || r.Protocol != v1.ProtocolTCP && r.Protocol != v1.ProtocolUDP || len(r.Sources) > 0 || r.KeepClient {
		return false
	}
	if len(r.Backends) == 0 {
		return refuse && !r.Drop
	}
	return !slices.ContainsFunc(r.Backends, func(e proxy.Endpoint) bool {
		return e.Addr == r.Front || e.Addr.Addr().Is4() != r.Front.Addr().Is4()
	})
}

// Entry is one front with its endpoints.
type Entry struct {
	Key
	ID       uint32
	Count    uint32
	Affinity uint32
	Slots    []Endpoint // endpoints that get new traffic, in the order of their slots
	Members  []Member   // all endpoints, sorted
}

// Member is an endpoint of a front with its state: target or draining.
type Member struct {
	Endpoint
	State uint32
}

func compareEndpoint(a, b Endpoint) int { return a.AddrPort().Compare(b.AddrPort()) }

// entryOf returns the Entry of a Route that Serves. Endpoints that were in old keep their slots.
func entryOf(r *proxy.Route, id uint32, old *Entry) *Entry {
	e := &Entry{Key: keyOf(r), ID: id, Affinity: uint32(r.Affinity.Seconds())}
	targets := r.Targets()
	wanted := make(map[Endpoint]bool, len(targets))
	for _, t := range targets {
		wanted[endpointOf(t.Addr)] = true
	}
	e.Count = uint32(len(wanted))
	for _, b := range r.Backends {
		one := Member{endpointOf(b.Addr), draining}
		if wanted[one.Endpoint] {
			one.State = target
		}
		e.Members = append(e.Members, one)
	}
	e.Slots = arrange(old, targets, wanted)
	return e
}

// arrange fills the slots. It empties wanted.
func arrange(old *Entry, targets []proxy.Endpoint, wanted map[Endpoint]bool) []Endpoint {
	slots := make([]Endpoint, len(wanted))
	if old != nil {
		for i, have := range old.Slots {
			if i < len(slots) && wanted[have] {
				slots[i] = have
				delete(wanted, have)
			}
		}
	}
	next := 0
	for _, t := range targets {
		one := endpointOf(t.Addr)
		if !wanted[one] {
			continue
		}
		delete(wanted, one)
		for slots[next] != (Endpoint{}) {
			next++
		}
		slots[next] = one
	}
	return slots
}

// Contents are the contents of the maps.
type Contents struct {
	Fronts  map[Key]Front
	Slots   map[SlotKey]Endpoint
	Members map[MemberKey]uint32
}

// entries assembles the entries, and returns the Ops that remove what belongs to no front.
func (c *Contents) entries() (list map[Key]*Entry, rest []Op) {
	list = make(map[Key]*Entry, len(c.Fronts))
	byID := make(map[uint32]*Entry, len(c.Fronts))
	for key, f := range c.Fronts {
		if byID[f.ID] != nil || f.Count > MaxEndpoints { // not ours
			rest = append(rest, Op{Kind: DeleteFront, Key: key})
			continue
		}
		e := &Entry{Key: key, ID: f.ID, Count: f.Count, Affinity: f.Affinity, Slots: make([]Endpoint, f.Count)}
		list[key], byID[f.ID] = e, e
	}
	for key, endpoint := range c.Slots {
		if e := byID[key.Front]; e != nil && int(key.Slot) < len(e.Slots) {
			e.Slots[key.Slot] = endpoint
		} else {
			rest = append(rest, Op{Kind: DeleteSlot, Slot: key})
		}
	}
	for key, state := range c.Members {
		if e := byID[key.Front]; e != nil {
			e.Members = append(e.Members, Member{key.Endpoint, state})
		} else {
			rest = append(rest, Op{Kind: DeleteMember, Member: key})
		}
	}
	for _, e := range list {
		slices.SortFunc(e.Members, func(a, b Member) int { return compareEndpoint(a.Endpoint, b.Endpoint) })
	}
	return list, rest
}
