package relay

import (
	"cmp"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/relay/choose"
	"github.com/winkube/winkube/pkg/proxy/relay/limits"
)

// NewPlane creates the Plane of one Relay. It must not touch the host before the first Carrier listens.
type NewPlane func(*Shared) Plane

// Plane moves the data of all fronts of a Relay. Sync calls it, one call at a time.
type Plane interface {
	// Carry returns the Carrier of a new front. The front owns it.
	Carry(f *Front) Carrier
	// Check repairs what other programs may have removed from the host. Idempotent.
	Check()
	// Close ends what all Carriers share. They must be closed already.
	Close()
}

// Carrier moves the data of one front. Sync calls it, one call at a time, except for Open.
type Carrier interface {
	// Listen opens a socket that is silent from the start towards some clients, or towards none.
	Listen(at Place, towards Silence) (Socket, error)
	// Changed says that the front has another Route: connections that wait for an endpoint may get one now, and those
	// to an endpoint that is no longer in the Route are watched. UDP sessions of such an endpoint end immediately; TCP
	// connections continue as long as it is alive.
	Changed()
	// Open returns the number of connections and sessions. It is safe for concurrent use.
	Open() int
	// Close ends everything that arrived with a reset to both sides, and waits until nothing is left. The sockets must
	// be closed already.
	Close()
}

// Socket listens on one address of a front.
type Socket interface {
	// Close stops listening. After it returns, nothing new can arrive.
	Close()
}

// Silence says from which clients a Socket drops everything without a response.
type Silence uint8

const (
	Hears      Silence = iota // from none
	DeafToFar                 // from those that are not in Shared.Near, nor at the address that they connect to
	DeafToEach                // from all
)

// Silencer is a Socket that can be silent. Silence with DeafToFar also makes it follow a change of Shared.Near.
type Silencer interface{ Silence(towards Silence) error }

// Place is where a front listens.
type Place struct {
	Addr netip.AddrPort
	Ours bool // the address is the proxy's, not the host's: programs that listen on all addresses do not mean this one
	Port bool // only this port is the proxy's, and the address is not local
}

// Shared is what all fronts of a Relay share.
type Shared struct {
	Ledger  *limits.Ledger
	Metrics *Metrics
	Near    *choose.Near // clients on this node

	clients *choose.Clients
	udpIdle time.Duration
	warn    limits.Warn
	clock   clock.PassiveClock
	keep    atomic.Bool // connections may use their client's address
	own     ownSockets
}

func newShared(cfg *Config) *Shared {
	capacity := cfg.Capacity
	if capacity == (limits.Capacity{}) {
		capacity = limits.HostCapacity()
	}
	capacity.Share, capacity.UDP = cfg.ClientShare, cfg.SessionPorts
	warn := cfg.Warn
	if warn == nil {
		warn = func(proxy.ServiceName, string, string) {}
	}
	metrics := newMetrics()
	return &Shared{Ledger: limits.NewLedger(capacity, warn, cfg.Clock), Metrics: metrics, Near: &choose.Near{}, clients: choose.NewClients(metrics.evicted), udpIdle: cmp.Or(cfg.UDPIdle, defaultUDPIdle),
		warn: warn, clock: cfg.Clock, own: ownSockets{ports: map[Port]struct{}{}}}
}

// ownSockets are all Ports on which the relay listens. With one of them as an endpoint, the relay would connect to
// itself endlessly.
type ownSockets struct {
	mu    sync.RWMutex
	ports map[Port]struct{}
}

func (o *ownSockets) has(p Port) bool {
	o.mu.RLock()
	defer o.mu.RUnlock()
	_, ok := o.ports[p]
	return ok
}

func (o *ownSockets) add(p Port) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ports[p] = struct{}{}
}

func (o *ownSockets) remove(p Port) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.ports, p)
}

// Reasons why a connection or a session is not served.
var (
	ErrOwnFront   = errors.New("the endpoint is a front of a Service on this node")
	ErrNoEndpoint = errors.New("there is no endpoint")
	ErrNoRoom     = errors.New("a limit was reached")
	ErrNoFiles    = errors.New("this host has no descriptor or memory left")
	ErrNotAllowed = errors.New("the client is not in loadBalancerSourceRanges")
)

// FilesRest is the longest pause after the system had no descriptor or memory for a connection. It ends early when one
// is released.
const FilesRest = time.Second

// LongSession is the number of a client's packets from which a UDP session counts as more than a question and its
// answer.
const LongSession = 3

// Admits reports whether a client may use the front at all.
func (f *Front) Admits(client netip.Addr) bool { return f.Chooser.Route().Allows(client) }

// Enter counts a client's new connection or session; false: it is refused. The caller must end those in gone.
func (f *Front) Enter(client netip.Addr, m *limits.Member) (gone []*limits.Member, ok bool) {
	return f.Ledger.Enter(f.account, client, m)
}

// Connect counts a connection to an endpoint before it is opened; see limits.Ledger.
func (f *Front) Connect(client netip.Addr, m *limits.Member, endpoint netip.AddrPort) (gone []*limits.Member, ok bool) {
	return f.Ledger.Connect(f.account, client, m, endpoint)
}

// Established records that a connection is established, or that a session has LongSession packets.
func (f *Front) Established(m *limits.Member) { f.Ledger.Established(f.account, m) }

// Leave removes a connection or session whose descriptors are closed. Idempotent.
func (f *Front) Leave(m *limits.Member) { f.Ledger.Leave(f.account, m) }

// IsOwn reports whether an endpoint is a front of this relay.
func (f *Front) IsOwn(endpoint netip.AddrPort) bool { return f.own.has(Port{f.Protocol, endpoint}) }

// KeepsClient reports whether connections to an endpoint may use the client's address: only on this node are its
// replies led back.
func (f *Front) KeepsClient(endpoint netip.AddrPort) bool {
	return f.keep.Load() && f.Chooser.Keeps(endpoint)
}

// Session chooses the endpoint of a client's new UDP session.
func (f *Front) Session(client netip.Addr) (netip.AddrPort, error) {
	if !f.Admits(client) {
		return netip.AddrPort{}, ErrNotAllowed
	}
	endpoint, ok := f.Chooser.Next(client, nil)
	switch {
	case !ok:
		return netip.AddrPort{}, ErrNoEndpoint
	case f.IsOwn(endpoint):
		return netip.AddrPort{}, ErrOwnFront
	}
	return endpoint, nil
}

// Idle returns how long a UDP session may be silent after so many packets of its client. A question and its answer need
// only a short time.
func (f *Front) Idle(packets int) time.Duration {
	if packets < LongSession {
		return min(shortUDPIdle, f.udpIdle)
	}
	return f.udpIdle
}

func newFront(shared *Shared, p Plane, protocol v1.Protocol) *Front {
	f := &Front{Shared: shared, Protocol: protocol, Chooser: choose.New(shared.clock, shared.clients, shared.Near)}
	f.account = limits.NewFront(protocol, f.Chooser)
	f.carrier = p.Carry(f)
	return f
}
