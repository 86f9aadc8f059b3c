// Package proxy is the first stage of the service proxy: it turns Services and EndpointSlices into a Table, and a
// Backend makes the host forward traffic accordingly.
//
//	Services, EndpointSlices --watch, batched--> Build(...) Table --> Backend.Sync(ctx, Table, changed)
//
// Build is pure. This file has the types and the one interface; relay, portproxy and hnslb implement it.
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

// Endpoint is one destination of traffic.
type Endpoint struct {
	Addr        netip.AddrPort
	Local       bool // on this node
	Terminating bool // keeps its connections, and gets new traffic if nothing else is left
}

// Route sends traffic for Front to one of Backends.
type Route struct {
	Service  ServicePortName
	Kind     Kind
	Protocol v1.Protocol
	Front    netip.AddrPort // NodePort: the unspecified address of the family, for those of the host's addresses that serve node ports
	Affinity time.Duration  // 0: none
	Sources  []netip.Prefix // loadBalancerSourceRanges; empty: anyone
	Backends []Endpoint     // selected by readiness, traffic policy and topology; sorted; may be empty: reject immediately
	// Near are the back ends for clients on this node, if they differ from Backends: externalTrafficPolicy Local applies
	// to traffic from outside, so its own node's pods and programs get every endpoint. Sorted; empty: Backends.
	Near []Endpoint
	// KeepClient says that endpoints must see the client's own address (externalTrafficPolicy Local).
	KeepClient bool
	Drop       bool // with no Backends: drop instead of reject (externalTrafficPolicy Local without a local endpoint)
}

// FrontKey identifies a front: where a back end listens. It is small because every index contains it.
type FrontKey struct {
	addr     netip.Addr // NodePort: the unspecified address of the family
	port     uint16
	protocol uint8 // index in protocols
}

var protocols = [...]v1.Protocol{"", v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP}

func keyOf(protocol v1.Protocol, front netip.AddrPort) FrontKey {
	return FrontKey{front.Addr(), front.Port(), uint8(max(slices.Index(protocols[:], protocol), 0))}
}

// Key returns the Route's front.
func (r *Route) Key() FrontKey { return keyOf(r.Protocol, r.Front) }

func (k FrontKey) compare(o FrontKey) int {
	return cmp.Or(k.addr.Compare(o.addr), cmp.Compare(k.port, o.port), cmp.Compare(k.protocol, o.protocol))
}

// Protocol returns TCP, UDP or SCTP.
func (k FrontKey) Protocol() v1.Protocol { return protocols[k.protocol] }

func (k FrontKey) String() string {
	return string(k.Protocol()) + " " + netip.AddrPortFrom(k.addr, k.port).String()
}

// Table is every Route that this node should serve, sorted by service, port, kind, protocol and front. No two Routes
// have the same front.
type Table struct {
	Routes []Route
	// HealthChecks are the health check node ports of Services with externalTrafficPolicy Local.
	HealthChecks []HealthCheck
	// ServiceRanges are the cluster's ranges of service addresses, sorted; none: unknown. A back end may make whole
	// ranges local.
	ServiceRanges []netip.Prefix
	// PodRanges are the ranges of this node's pods, which Routes' Near is for; none: unknown.
	PodRanges []netip.Prefix
}

// HealthCheck is one health check node port.
type HealthCheck struct {
	Service        ServiceName
	Port           uint16
	LocalEndpoints int
}

// NodeInfo is the input of Build about the node.
type NodeInfo struct {
	Name string
	Zone string
	// Families that are served; both false: both.
	IPv4, IPv6 bool
}

// Backend makes the host forward traffic according to a Table.
type Backend interface {
	// Sync makes the host match want and nothing more. changed names the Services that differ from the last call (nil:
	// unknown, compare all), so that the cost of a change does not grow with the number of Services; for a front that
	// moves between Services it names both. Applying the same Table twice changes nothing; an empty Table removes all
	// changes to the host. Errors of single Routes are joined, and the rest is applied.
	Sync(ctx context.Context, want *Table, changed []ServiceName) error
}
