package relay

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/proxy"
)

const (
	// sayEvery is how often the same is said: in the log for each cause, and in an Event for each cause and Service.
	sayEvery = time.Minute
	// maxSaid bounds how many Services hear of causes in that time.
	maxSaid = 256
	// tightFor is how long descriptors that the system refused count as not there.
	tightFor = time.Minute
	// filesRest is the longest pause after the system had no descriptor or memory for a connection. It ends with the next one that is given back.
	filesRest = time.Second
)

var (
	errNoRoom  = errors.New("a limit is reached")
	errNoFiles = errors.New("this host has no descriptor or memory left")
)

// start is when seconds begin to count.
var start = time.Now()

func secondsAt(t time.Time) uint32 { return uint32(t.Sub(start)/time.Second) + 1 }

// ledger holds all fronts of a Relay to the limits. It is safe for concurrent use: a connection enters, gets an endpoint, settles and leaves, each
// under one short lock; its bytes pass without.
type ledger struct {
	cfg    *Config
	pipes  atomic.Int32 // in use; nothing enters a book for them
	sticky stickies

	mu        sync.Mutex
	capacity  capacity
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

func newLedger(cfg *Config) *ledger {
	l := &ledger{cfg: cfg, tcp: newBook(false), udp: newBook(true), said: map[saying]time.Time{},
		connections: newLimited(causeNames), sessions: newLimited(sessionNames)}
	l.sticky.evicted = limitedTotal("affinity_clients", "closed")
	c := hostCapacity()
	c.share, c.udp = cfg.ClientShare, cfg.SessionPorts
	l.resize(c)
	return l
}

func (l *ledger) resize(c capacity) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.capacity, l.limits = c, c.limits()
}

// now are the limits of both protocols as things stand.
func (l *ledger) now() (tcp, udp tier) {
	limits := l.limits
	if l.tight > 0 {
		if l.cfg.Clock.Now().Before(l.until) {
			limits.files = min(limits.files, l.tight)
		} else {
			l.tight = 0
		}
	}
	return limits.tcp(l.udp.count, l.listening), limits.udp(l.tcp.count, l.listening)
}

// listens counts a socket of a front, which has a descriptor that connections do not get; by is 1 or -1.
func (l *ledger) listens(by int) {
	if l == nil {
		return // sockets of no front
	}
	l.mu.Lock()
	l.listening += by
	l.mu.Unlock()
}

// enter counts a new connection or session; false: it is refused. The caller ends those that made room.
func (l *ledger) enter(f *front, client netip.Addr, m *member) (gone []*member, ok bool) {
	l.mu.Lock()
	tcp, udp := l.now()
	b, limit := &l.tcp, tcp
	if f.protocol == v1.ProtocolUDP {
		b, limit = &l.udp, udp
	}
	o := b.enter(f.tab, client, m, limit)
	l.mu.Unlock()
	if o.reached != noLimit {
		l.tell(f, client, &o, limit)
	}
	return o.gone, !o.refused
}

// lead counts a connection to an endpoint before it is opened; false: another endpoint may have room.
func (l *ledger) lead(f *front, client netip.Addr, m *member, endpoint netip.AddrPort) (gone []*member, ok bool) {
	l.mu.Lock()
	o := l.tcp.lead(m, endpoint, l.limits.ports)
	limit := tier{all: l.limits.ports.all, client: l.limits.ports.client}
	l.mu.Unlock()
	if o.reached != noLimit {
		l.tell(f, client, &o, limit)
	}
	return o.gone, !o.refused
}

// unlead takes lead back.
func (l *ledger) unlead(m *member) {
	l.mu.Lock()
	l.tcp.leaveWay(m)
	l.mu.Unlock()
}

// settle notes that a connection is established, or that a session is more than a question.
func (l *ledger) settle(f *front, m *member) {
	l.mu.Lock()
	l.of(f).settle(m)
	l.mu.Unlock()
}

func (l *ledger) of(f *front) *book {
	if f.protocol == v1.ProtocolUDP {
		return &l.udp
	}
	return &l.tcp
}

// leave forgets a connection or session whose descriptors are closed.
func (l *ledger) leave(f *front, m *member) {
	l.mu.Lock()
	l.of(f).leave(m)
	freed := l.freed
	l.freed = nil
	l.mu.Unlock()
	for _, wake := range freed {
		wake()
	}
}

// await has wake called once when a descriptor is free.
func (l *ledger) await(wake func()) {
	l.mu.Lock()
	l.freed = append(l.freed, wake)
	l.mu.Unlock()
}

// out notes that the system had no descriptor or memory for a socket, although the limits left some: others of the host have them. For a while no more
// are used than now, and who has the most gives one up, so that the next one who comes is served.
func (l *ledger) out(err error) (gone []*member) {
	l.mu.Lock()
	used := l.files()
	l.tight, l.until = max(used-2, 1), l.cfg.Clock.Now().Add(tightFor)
	o := outcome{reached: filesLimit}
	b, pool := &l.tcp, &l.tcp.clients
	v := pool.victim()
	if v == nil && l.udp.fronts.top > 0 {
		b, v = &l.udp, l.udp.fronts.greediest().tab.pairs.victim()
	}
	if v != nil {
		b.give(&o, v)
	}
	l.connections.closed[filesLimit].Add(float64(len(o.gone)))
	l.mu.Unlock()
	if l.due(saying{cause: filesLimit}) {
		klog.InfoS("This host has no descriptor or memory left for another connection; those of clients with the most are closed until there is", "err", err,
			"inUse", used, "closed", len(o.gone))
	}
	return o.gone
}

// due says whether something is to be said, since it was not lately.
func (l *ledger) due(s saying) bool {
	now := l.cfg.Clock.Now()
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
func (l *ledger) tell(f *front, client netip.Addr, o *outcome, limit tier) {
	service := f.route.Load().Service.ServiceName
	counted := &l.connections
	if f.protocol == v1.ProtocolUDP {
		counted = &l.sessions
	}
	if o.refused {
		counted.refused[o.reached].Inc()
		l.say(o.reached, service, fmt.Sprintf("client %s is refused: %s", client, describe(o.reached, f.protocol, limit)))
	}
	counted.closed[o.reached].Add(float64(len(o.gone)))
	for _, t := range o.tabs {
		l.say(o.reached, t.service(), fmt.Sprintf("the longest silent of a client with many was closed to make room: %s", describe(o.reached, f.protocol, limit)))
	}
}

func (l *ledger) say(c cause, service proxy.ServiceName, text string) {
	if l.due(saying{cause: c}) {
		klog.InfoS("Clients are held to a limit", "service", service, "detail", text)
	}
	if l.cfg.Warn != nil && l.due(saying{c, service}) {
		go l.cfg.Warn(service, "ClientLimited", text)
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
		return fmt.Sprintf("%d %s to one address and port of a Service are open, as many as may be", t.front, what)
	case portsOfClient:
		return fmt.Sprintf("one address may have %d %s to one endpoint, by this node's source ports (--client-share); more endpoints help", t.client, what)
	case portsLimit:
		return fmt.Sprintf("%d %s to one endpoint are open, as many as this node has source ports for; more endpoints help", t.all, what)
	}
	return fmt.Sprintf("%d %s are open on this node, as many as may be (its limit of open files, and for UDP of source ports)", t.all, what)
}
