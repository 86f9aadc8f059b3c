package limits

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/proxy"
)

const (
	// sayEvery is the minimum interval of equal messages: in the log for each cause, and in Events for each cause and
	// Service.
	sayEvery = time.Minute
	// maxSaid is the maximum number of messages in that time.
	maxSaid = 256
	// tightFor is how long refused descriptors count as unavailable.
	tightFor = time.Minute
)

// epoch is the origin of SecondsAt.
var epoch = time.Now()

// SecondsAt converts a time to seconds since this process started, beginning with 1.
func SecondsAt(t time.Time) uint32 { return uint32(t.Sub(epoch)/time.Second) + 1 }

// Warn records an Event on a Service; the reason is one word. It may block for a moment.
type Warn func(service proxy.ServiceName, reason, message string)

// Ledger enforces the limits for all fronts of a relay. It is safe for concurrent use: a connection enters, gets an
// endpoint, is established and leaves, each under one short lock; data transfer needs no lock.
type Ledger struct {
	warn  Warn
	clock clock.PassiveClock
	pipes atomic.Int32 // in use; not counted in a book

	mu        sync.Mutex
	limits    limits
	tight     int // descriptors in use by connections and sessions when the system last refused one
	until     time.Time
	listening int // listening sockets of fronts
	tcp, udp  book
	said      map[saying]time.Time
	freed     []func() // called when a descriptor is free

	connections, sessions limited
}

type saying struct {
	cause   cause
	service proxy.ServiceName // zero: the log
}

// NewLedger returns a Ledger without members.
func NewLedger(c Capacity, warn Warn, clock clock.PassiveClock) *Ledger {
	return &Ledger{warn: warn, clock: clock, limits: c.limits(), tcp: newBook(false), udp: newBook(true), said: map[saying]time.Time{},
		connections: newLimited(causeNames), sessions: newLimited(sessionNames)}
}

// now returns the current limits of both protocols.
func (l *Ledger) now() (tcp, udp tier) {
	limits := l.limits
	if l.tight > 0 {
		if l.clock.Now().Before(l.until) {
			limits.files = min(limits.files, l.tight)
		} else {
			l.tight = 0
		}
	}
	return limits.tcp(l.udp.count, l.listening), limits.udp(l.tcp.count, l.listening)
}

// Listens counts listening sockets, whose descriptors are not available to connections; by is 1 or -1.
func (l *Ledger) Listens(by int) {
	l.mu.Lock()
	l.listening += by
	l.mu.Unlock()
}

// Enter counts a new connection or session; false: it is refused. The caller must end those in gone.
func (l *Ledger) Enter(f *Front, client netip.Addr, m *Member) (gone []*Member, ok bool) {
	l.mu.Lock()
	tcp, udp := l.now()
	b, limit := &l.tcp, tcp
	if f.protocol == v1.ProtocolUDP {
		b, limit = &l.udp, udp
	}
	o := b.enter(f, client, m, limit)
	l.mu.Unlock()
	if o.reached != noLimit {
		l.tell(f, client, &o, limit)
	}
	return o.gone, !o.refused
}

// Connect counts a connection to an endpoint before it is opened; false: another endpoint may have room. The caller
// must end those in gone.
func (l *Ledger) Connect(f *Front, client netip.Addr, m *Member, endpoint netip.AddrPort) (gone []*Member, ok bool) {
	l.mu.Lock()
	o := l.tcp.lead(m, endpoint, l.limits.ports)
	limit := tier{all: l.limits.ports.all, client: l.limits.ports.client}
	l.mu.Unlock()
	if o.reached != noLimit {
		l.tell(f, client, &o, limit)
	}
	return o.gone, !o.refused
}

// Disconnect reverts Connect. Idempotent.
func (l *Ledger) Disconnect(m *Member) {
	l.mu.Lock()
	l.tcp.leaveWay(m)
	l.mu.Unlock()
}

// Established records that a connection is established, or that a session is more than a question and its answer.
func (l *Ledger) Established(f *Front, m *Member) {
	l.mu.Lock()
	l.of(f).established(m)
	l.mu.Unlock()
}

func (l *Ledger) of(f *Front) *book {
	if f.protocol == v1.ProtocolUDP {
		return &l.udp
	}
	return &l.tcp
}

// Leave removes a connection or session whose descriptors are closed. Idempotent.
func (l *Ledger) Leave(f *Front, m *Member) {
	l.mu.Lock()
	l.of(f).leave(m)
	freed := l.freed
	l.freed = nil
	l.mu.Unlock()
	for _, wake := range freed {
		wake()
	}
}

// Await registers wake to be called once when a descriptor is free, by the goroutine that frees it. wake must not
// block.
func (l *Ledger) Await(wake func()) {
	l.mu.Lock()
	l.freed = append(l.freed, wake)
	l.mu.Unlock()
}

// NoFiles records that the system had no descriptor or memory for a socket, although the limits allowed one: other
// processes use them. For tightFor, no more are used than now. The client with the most must give up one, so that the
// next client is served. The caller must end those in gone.
func (l *Ledger) NoFiles(err error) (gone []*Member) {
	l.mu.Lock()
	used := l.files()
	l.tight, l.until = max(used-2, 1), l.clock.Now().Add(tightFor)
	o := outcome{reached: filesLimit}
	b, pool := &l.tcp, &l.tcp.clients
	v := pool.victim()
	if v == nil && l.udp.fronts.top > 0 {
		b, v = &l.udp, l.udp.fronts.Greediest().pairs.victim()
	}
	if v != nil {
		b.give(&o, v)
	}
	l.connections.closed[filesLimit].Add(float64(len(o.gone)))
	l.mu.Unlock()
	if l.due(saying{cause: filesLimit}) {
		klog.InfoS("This host has no descriptor or memory left for another connection; closing those of the clients with the most. Raise the limit of open files", "err", err,
			"inUse", used, "closed", len(o.gone))
	}
	return o.gone
}

// DueToLog reports whether to log a failure that no limit caused: at most once a minute.
func (l *Ledger) DueToLog() bool { return l.due(saying{cause: noLimit}) }

// TakePipe counts a pipe of two descriptors; false: too many.
func (l *Ledger) TakePipe() bool {
	if int(l.pipes.Add(1)) > l.maxPipes() {
		l.pipes.Add(-1)
		return false
	}
	return true
}

// DropPipe reverts TakePipe.
func (l *Ledger) DropPipe() { l.pipes.Add(-1) }

func (l *Ledger) maxPipes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limits.pipes
}

// due reports whether to emit a message, because it was not emitted recently.
func (l *Ledger) due(s saying) bool {
	now := l.clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if last, ok := l.said[s]; ok && now.Sub(last) < sayEvery {
		return false
	}
	if len(l.said) >= maxSaid {
		for key, last := range l.said {
			if now.Sub(last) >= sayEvery {
				delete(l.said, key)
			}
		}
		if len(l.said) >= maxSaid {
			return false
		}
	}
	l.said[s] = now
	return true
}

// tell counts the outcome of a limit and reports it, unless it was reported recently: in the log, and to the Service
// whose client is refused or disconnected.
func (l *Ledger) tell(f *Front, client netip.Addr, o *outcome, limit tier) {
	service := f.service()
	counted := &l.connections
	if f.protocol == v1.ProtocolUDP {
		counted = &l.sessions
	}
	if o.refused {
		counted.refused[o.reached].Inc()
		l.say(o.reached, service, fmt.Sprintf("client %s is refused: %s", client, describe(o.reached, f.protocol, limit)))
	}
	counted.closed[o.reached].Add(float64(len(o.gone)))
	for _, of := range o.fronts {
		l.say(o.reached, of.service(), fmt.Sprintf("closed the longest idle connection of a client with many, to make room: %s", describe(o.reached, f.protocol, limit)))
	}
}

func (l *Ledger) say(c cause, service proxy.ServiceName, text string) {
	if l.due(saying{cause: c}) {
		klog.InfoS("A limit on clients is reached", "service", service, "detail", text)
	}
	if l.due(saying{c, service}) {
		go l.warn(service, "ClientLimited", text) // asynchronous, because it may wait for the watch's lock, for which no connection should wait
	}
}

// describe says which limit was reached.
func describe(c cause, protocol v1.Protocol, t tier) string {
	what := "TCP connections"
	if protocol == v1.ProtocolUDP {
		what = "UDP sessions"
	}
	switch c {
	case clientLimit:
		return fmt.Sprintf("one address may have %d %s through this node (--client-share)", t.client, what)
	case pairLimit:
		return fmt.Sprintf("one address may have %d %s to one address and port of a Service (--client-share)", t.pair, what)
	case earlyLimit:
		return fmt.Sprintf("%d %s to one address and port of a Service may wait for endpoints to answer, and %d of one client", t.early.all, what, t.early.client)
	case frontLimit:
		return fmt.Sprintf("%d %s to one address and port of a Service are open, which is the maximum", t.front, what)
	case portsOfClient:
		return fmt.Sprintf("one address may have %d %s to one endpoint, by this node's source ports (--client-share); more endpoints help", t.client, what)
	case portsLimit:
		return fmt.Sprintf("%d %s to one endpoint are open, as many as this node has source ports for; more endpoints help", t.all, what)
	}
	return fmt.Sprintf("%d %s are open on this node, which is the maximum (its limit of open files, and for UDP of source ports)", t.all, what)
}

// Counters returns the metrics of what the limits refused or closed.
func (l *Ledger) Counters() []prometheus.Counter {
	return append(l.connections.named(causeNames), l.sessions.named(sessionNames)...)
}

// Use is one limit with its current use: for limits per client, front or endpoint, the highest use.
type Use struct {
	Of          string
	Used, Limit int
}

// Uses returns all limits with their current use.
func (l *Ledger) Uses() []Use {
	l.mu.Lock()
	defer l.mu.Unlock()
	tcp, udp := l.now()
	ofPair, halfOpen := l.tcp.mostAtFront()
	ofSessions, _ := l.udp.mostAtFront()
	toOne, ofOne := l.tcp.mostToOne()
	return []Use{
		{"connections", l.tcp.count, tcp.all},
		{"connections_of_client", l.tcp.clients.ranking.top, tcp.client},
		{"connections_of_front", l.tcp.fronts.top, tcp.front},
		{"connections_of_client_at_front", ofPair, tcp.pair},
		{"half_open_of_front", halfOpen, tcp.early.all},
		{"source_ports_to_endpoint", toOne, l.limits.ports.all},
		{"source_ports_to_endpoint_of_client", ofOne, l.limits.ports.client},
		{"sessions", l.udp.count, udp.all},
		{"sessions_of_front", l.udp.fronts.top, udp.front},
		{"sessions_of_client_at_front", ofSessions, udp.pair},
		{"files", l.files(), l.limits.files},
		{"pipes", int(l.pipes.Load()), l.limits.pipes},
	}
}

// files returns the descriptors of fronts, connections and sessions. The caller holds the lock.
func (l *Ledger) files() int { return l.listening + 2*l.tcp.count + l.udp.count }
