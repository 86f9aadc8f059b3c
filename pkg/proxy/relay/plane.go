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

// NewPlane makes the Plane of one Relay. It must not touch the host before the first Carrier listens.
type NewPlane func(*Shared) Plane

// Plane moves the data of all fronts of a Relay. Sync calls it, one call at a time.
type Plane interface {
	// Carry returns what moves the data of a new front. It belongs to the front.
	Carry(f *Front) Carrier
	// Check repairs what others may have taken away on the host. It is idempotent.
	Check()
	// Close ends what all Carriers share. They are closed already.
	Close()
}

// Carrier moves the data of one front. Sync calls it, one call at a time, except for Open.
type Carrier interface {
	// Listen opens a socket, which is silent from the start if it is to be.
	Listen(at Place, silent bool) (Socket, error)
	// Changed says that the front has another Route: what waits for an endpoint may have one now, and what is connected to an endpoint that is not
	// in the Route any more is watched. UDP sessions of such an endpoint end immediately; TCP connections go on as long as it is alive.
	Changed()
	// Open is the number of connections and sessions. It may be called at any time, from any goroutine.
	Open() int
	// Close ends everything that came in, telling both sides, and returns when nothing of it is left. The sockets are closed already.
	Close()
}

// Socket listens on one address of a front.
type Socket interface {
	// Close stops listening. It returns when nothing new can come in.
	Close()
}

// Silencer is a Socket that can leave whatever comes to it without an answer.
type Silencer interface{ Silence(on bool) error }

// Place is where a front listens.
type Place struct {
	Addr netip.AddrPort
	Ours bool // the address is the proxy's, not the host's: no program of the host means it by listening on all addresses
	Port bool // only this port is the proxy's, and the address is not local
}

// Shared is what all fronts of a Relay have in common.
type Shared struct {
	Ledger  *limits.Ledger
	Metrics *Metrics

	clients *choose.Clients
	udpIdle time.Duration
	warn    limits.Warn
	clock   clock.PassiveClock
	keep    atomic.Bool // connections may carry their client's address
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
	return &Shared{Ledger: limits.NewLedger(capacity, warn, cfg.Clock), Metrics: metrics, clients: choose.NewClients(metrics.evicted), udpIdle: cmp.Or(cfg.UDPIdle, defaultUDPIdle),
		warn: warn, clock: cfg.Clock, own: ownSockets{ports: map[Port]struct{}{}}}
}

// ownSockets are all Ports on which the relay listens. An endpoint that is one of them would have the relay talk to itself without end.
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

// Why a connection or a session is not served.
var (
	ErrOwnFront   = errors.New("the endpoint is a front of a Service on this node")
	ErrNoEndpoint = errors.New("there is no endpoint")
	ErrNoRoom     = errors.New("a limit was reached")
	ErrNoFiles    = errors.New("this host has no descriptor or memory left")
	ErrNotAllowed = errors.New("the client is not in loadBalancerSourceRanges")
)

// FilesRest is the longest pause after the system had no descriptor or memory for a connection. It ends with the next one that is given back.
const FilesRest = time.Second

// LongSession is the number of a client's packets from which a UDP session counts as more than a question and its answer.
const LongSession = 3

// Admits says whether a client may use the front at all.
func (f *Front) Admits(client netip.Addr) bool { return f.Chooser.Route().Allows(client) }

// Enter counts a new connection or session of a client; false: it is refused. The caller ends those that made room.
func (f *Front) Enter(client netip.Addr, m *limits.Member) (gone []*limits.Member, ok bool) {
	return f.Ledger.Enter(f.account, client, m)
}

// Connect counts a connection to an endpoint before it is opened; see limits.Ledger.
func (f *Front) Connect(client netip.Addr, m *limits.Member, endpoint netip.AddrPort) (gone []*limits.Member, ok bool) {
	return f.Ledger.Connect(f.account, client, m, endpoint)
}

// Established notes that a connection is established, or that a session has LongSession packets.
func (f *Front) Established(m *limits.Member) { f.Ledger.Established(f.account, m) }

// Leave forgets a connection or session whose descriptors are closed. It is idempotent.
func (f *Front) Leave(m *limits.Member) { f.Ledger.Leave(f.account, m) }

// IsOwn says whether an endpoint is a front of this relay.
func (f *Front) IsOwn(endpoint netip.AddrPort) bool { return f.own.has(Port{f.Protocol, endpoint}) }

// KeepsClient says whether connections to endpoints may carry the client's address.
func (f *Front) KeepsClient() bool { return f.keep.Load() && f.Chooser.Route().KeepClient }

// Session chooses the endpoint of a new UDP session of a client.
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

// Idle is how long a UDP session may be silent after so many packets of its client. A question and its answer need no long memory.
func (f *Front) Idle(packets int) time.Duration {
	if packets < LongSession {
		return min(shortUDPIdle, f.udpIdle)
	}
	return f.udpIdle
}

func newFront(shared *Shared, p Plane, protocol v1.Protocol) *Front {
	f := &Front{Shared: shared, Protocol: protocol, Chooser: choose.New(shared.clock, shared.clients)}
	f.account = limits.NewFront(protocol, f.Chooser)
	f.carrier = p.Carry(f)
	return f
}
