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
	// sayEvery is how often the same is said: in the log for each cause, and in an Event for each cause and Service.
	sayEvery = time.Minute
	// maxSaid bounds how many Services get a report in that time.
	maxSaid = 256
	// tightFor is how long descriptors that the system refused count as not there.
	tightFor = time.Minute
)

// epoch is when seconds begin to count.
var epoch = time.Now()

// SecondsAt is a time in seconds since this process began, from 1 on.
func SecondsAt(t time.Time) uint32 { return uint32(t.Sub(epoch)/time.Second) + 1 }

// Warn records an Event on a Service; the reason is one word. It may block for a moment.
type Warn func(service proxy.ServiceName, reason, message string)

// Ledger holds all fronts of a relay to the limits. It is safe for concurrent use: a connection enters, gets an endpoint, is established and leaves, each
// under one short lock; its bytes pass without.
type Ledger struct {
	warn  Warn
	clock clock.PassiveClock
	pipes atomic.Int32 // in use; nothing enters a book for them

	mu        sync.Mutex
	limits    limits
	tight     int // descriptors, connections and sessions together, when the system last refused one
	until     time.Time
	listening int // sockets of fronts
	tcp, udp  book
	said      map[saying]time.Time
	freed     []func() // wait for a descriptor

	connections, sessions limited
}

type saying struct {
	cause   cause
	service proxy.ServiceName // none: the log
}

// NewLedger returns a Ledger without members.
func NewLedger(c Capacity, warn Warn, clock clock.PassiveClock) *Ledger {
	return &Ledger{warn: warn, clock: clock, limits: c.limits(), tcp: newBook(false), udp: newBook(true), said: map[saying]time.Time{},
		connections: newLimited(causeNames), sessions: newLimited(sessionNames)}
}

// now are the limits of both protocols as things stand.
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

// Listens counts a socket that listens, which has a descriptor that connections do not get; by is 1 or -1.
func (l *Ledger) Listens(by int) {
	l.mu.Lock()
	l.listening += by
	l.mu.Unlock()
}

// Enter counts a new connection or session; false: it is refused. The caller ends those that made room.
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

// Connect counts a connection to an endpoint before it is opened; false: another endpoint may have room. The caller ends those that made room.
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

// Disconnect takes Connect back. It is idempotent.
func (l *Ledger) Disconnect(m *Member) {
	l.mu.Lock()
	l.tcp.leaveWay(m)
	l.mu.Unlock()
}

// Established notes that a connection is established, or that a session is more than a question and its answer.
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

// Leave forgets a connection or session whose descriptors are closed. It is idempotent.
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

// Await has wake called once when a descriptor is free, by whoever frees it. wake must not block.
func (l *Ledger) Await(wake func()) {
	l.mu.Lock()
	l.freed = append(l.freed, wake)
	l.mu.Unlock()
}

// NoFiles notes that the system had no descriptor or memory for a socket, although the limits left some: others of the host have them. For a while no
// more are used than now, and whoever has the most gives one up, so that the next client is served. The caller ends what is returned.
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

// DueToLog says whether a failure that is no limit's should be logged, since none was within the last minute.
func (l *Ledger) DueToLog() bool { return l.due(saying{cause: noLimit}) }

// TakePipe counts a pipe of two descriptors; false: there are enough.
func (l *Ledger) TakePipe() bool {
	if int(l.pipes.Add(1)) > l.maxPipes() {
		l.pipes.Add(-1)
		return false
	}
	return true
}

// DropPipe takes TakePipe back.
func (l *Ledger) DropPipe() { l.pipes.Add(-1) }

func (l *Ledger) maxPipes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.limits.pipes
}

// due says whether something is to be said, since it was not lately.
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

// tell counts what a limit meant, and says it where it has not been said lately: to the log, and to the Service whose client is refused or cut off.
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
		go l.warn(service, "ClientLimited", text) // not awaited: it may wait for the watch's lock, for which no connection should wait
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

// Counters are the metrics of what the limits refused or closed.
func (l *Ledger) Counters() []prometheus.Counter {
	return append(l.connections.named(causeNames), l.sessions.named(sessionNames)...)
}

// Use is one limit, and what is used of it: of limits for each client, front or endpoint, what the one with the most has.
type Use struct {
	Of          string
	Used, Limit int
}

// Uses are all limits and what is used of them.
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

// files are the descriptors of fronts, connections and sessions. The lock is held.
func (l *Ledger) files() int { return l.listening + 2*l.tcp.count + l.udp.count }
