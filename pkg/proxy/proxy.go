// Package proxy is the first arrow of the service proxy: Services and EndpointSlices go in, a Table comes out, and a Backend makes
// the host forward traffic as the Table says.
//
//	Services, EndpointSlices --watch, batched--> Build(...) Table --> Backend.Sync(ctx, Table, changed)
//
// Build is pure. This file holds the nouns and the one interface; relay, portproxy and hnslb implement it.
package proxy

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ServiceName names a Service.
type ServiceName = types.NamespacedName

// ServicePortName names one port of a Service.
type ServicePortName struct {
	ServiceName
	Port string // "" for the single unnamed port
}

// Kind is the field of a Service from which a Route's Front comes.
type Kind string

const (
	ClusterIP    Kind = "ClusterIP"
	NodePort     Kind = "NodePort"
	ExternalIP   Kind = "ExternalIP"
	LoadBalancer Kind = "LoadBalancer"
)

// Endpoint is one place to which traffic may go.
type Endpoint struct {
	Addr        netip.AddrPort
	Local       bool // on this node
	Terminating bool // chosen although terminating: serves what it has, and new traffic when nothing else is left
}

// Route says that traffic to Front goes to one of Backends.
type Route struct {
	Service  ServicePortName
	Kind     Kind
	Protocol v1.Protocol
	Front    netip.AddrPort // NodePort: the unspecified address of the family; those of the host that serve node ports are meant
	Affinity time.Duration  // 0: none
	Sources  []netip.Prefix // loadBalancerSourceRanges; empty: anyone
	Backends []Endpoint     // already chosen by readiness, traffic policy and topology; sorted; may be empty: reject immediately
	// KeepClient says that endpoints are to see the client's own address (externalTrafficPolicy Local).
	KeepClient bool
	Drop       bool // with no Backends: drop instead of reject (externalTrafficPolicy Local without a local endpoint)
}

// FrontKey identifies a front: where a back end listens. It is small, since every index holds one.
type FrontKey struct {
	addr     netip.Addr // NodePort: the unspecified address of the family
	port     uint16
	protocol uint8 // its place in protocols
}

var protocols = [...]v1.Protocol{"", v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP}

func keyOf(protocol v1.Protocol, front netip.AddrPort) FrontKey {
	return FrontKey{front.Addr(), front.Port(), uint8(max(slices.Index(protocols[:], protocol), 0))}
}

// Key is the Route's front.
func (r *Route) Key() FrontKey { return keyOf(r.Protocol, r.Front) }

func (k FrontKey) compare(o FrontKey) int {
	return cmp.Or(k.addr.Compare(o.addr), cmp.Compare(k.port, o.port), cmp.Compare(k.protocol, o.protocol))
}

// Protocol is TCP, UDP or SCTP.
func (k FrontKey) Protocol() v1.Protocol { return protocols[k.protocol] }

func (k FrontKey) String() string {
	return string(k.Protocol()) + " " + netip.AddrPortFrom(k.addr, k.port).String()
}

// Table is every Route this node should serve, sorted by service, port, kind, protocol and front. No two Routes have one front.
type Table struct {
	Routes []Route
	// HealthChecks are the health check node ports of Services with externalTrafficPolicy Local.
	HealthChecks []HealthCheck
	// ServiceRanges are those from which the cluster takes service addresses, sorted; none: they are not known. A back end may make them local as a whole.
	ServiceRanges []netip.Prefix
}

// HealthCheck is one health check node port.
type HealthCheck struct {
	Service        ServiceName
	Port           uint16
	LocalEndpoints int
}

// NodeInfo is what Build must know of the node.
type NodeInfo struct {
	Name string
	Zone string
	// Families that are served; empty: both.
	IPv4, IPv6 bool
}

// Backend makes the host forward traffic as a Table says.
type Backend interface {
	// Sync makes the host match want and nothing more. changed names the services that differ from the last call (nil: unknown, compare
	// all), so that the cost of a change does not grow with the number of services; of a front that passes from one Service to another it
	// names both. The same Table twice changes nothing; an empty Table removes every trace. Errors of single Routes are joined, the rest is applied.
	Sync(ctx context.Context, want *Table, changed []ServiceName) error
}
