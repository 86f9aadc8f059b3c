package choose

import (
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/winkube/winkube/pkg/proxy/relay/limits"
)

const (
	// MaxClients and MaxFrontClients are how many clients are remembered with their endpoint (session affinity), some
	// 150 bytes each. Packets with forged source addresses can reach these limits; upstream's nftables and iptables
	// rules have such limits too.
	MaxClients      = 32768
	MaxFrontClients = 16384
	// expireEach is how many expired clients are removed with each new one.
	expireEach = 16
)

// Clients are the clients that all fronts of a relay remember. Beyond the limit of a front, a new client replaces the
// front's least recently used one; beyond the total limit, that of the front with the most. It is safe for concurrent
// use.
type Clients struct {
	mu      sync.Mutex
	fronts  limits.Ranking[frontClients]
	count   int
	evicted prometheus.Counter
}

// NewClients returns empty Clients. evicted counts clients that were replaced.
func NewClients(evicted prometheus.Counter) *Clients { return &Clients{evicted: evicted} }

// frontClients are the clients of one front, least recently used first.
type frontClients struct {
	rank        limits.Ranked[frontClients]
	clients     map[netip.Addr]*sticky
	first, last *sticky
}

// sticky is a client's last endpoint.
type sticky struct {
	client         netip.Addr
	target         netip.AddrPort
	used           int64 // in nanoseconds
	previous, next *sticky
}

func newFrontClients() *frontClients {
	f := &frontClients{clients: map[netip.Addr]*sticky{}}
	f.rank.Owner = f
	return f
}

// get returns a client's endpoint within the affinity time.
func (s *Clients) get(f *frontClients, client netip.Addr, now time.Time, affinity time.Duration) (netip.AddrPort, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(f, now, affinity, expireEach)
	if one := f.clients[client]; one != nil && now.UnixNano()-one.used < int64(affinity) {
		return one.target, true
	}
	return netip.AddrPort{}, false
}

// set records a client's endpoint.
func (s *Clients) set(f *frontClients, client netip.Addr, target netip.AddrPort, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := f.clients[client]
	if one != nil {
		f.unlink(one)
	} else {
		switch {
		case len(f.clients) >= MaxFrontClients:
			one = s.evict(f)
		case s.count >= MaxClients:
			one = s.evict(s.fronts.Greediest())
		default:
			one = &sticky{}
		}
		one.client = client
		f.clients[client] = one
		s.count++
		s.fronts.Add(&f.rank, 1)
	}
	one.target, one.used = target, now.UnixNano()
	f.link(one)
}

// evict removes the least recently used client of a front and returns its memory for reuse.
func (s *Clients) evict(f *frontClients) *sticky {
	one := f.first
	s.forget(f, one)
	s.evicted.Inc()
	return one
}

func (s *Clients) forget(f *frontClients, one *sticky) {
	f.unlink(one)
	delete(f.clients, one.client)
	s.count--
	s.fronts.Add(&f.rank, -1)
}

// expire removes up to n expired clients, and reports whether there may be more.
func (s *Clients) expire(f *frontClients, now time.Time, affinity time.Duration, n int) bool {
	for range n {
		if f.first == nil || now.UnixNano()-f.first.used < int64(affinity) {
			return false
		}
		s.forget(f, f.first)
	}
	return true
}

// expireAll removes all expired clients, and releases the lock in between.
func (s *Clients) expireAll(f *frontClients, now time.Time, affinity time.Duration) {
	for more := true; more; {
		s.mu.Lock()
		more = s.expire(f, now, affinity, 16*expireEach)
		s.mu.Unlock()
	}
}

// clear removes all clients of a front.
func (s *Clients) clear(f *frontClients) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count -= len(f.clients)
	s.fronts.Add(&f.rank, -len(f.clients))
	f.clients, f.first, f.last = map[netip.Addr]*sticky{}, nil, nil
}

// Used returns the number of remembered clients, and that of the front with the most.
func (s *Clients) Used() (all, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count, s.fronts.Top()
}

func (f *frontClients) link(one *sticky) {
	if one.previous, one.next = f.last, nil; f.last != nil {
		f.last.next = one
	} else {
		f.first = one
	}
	f.last = one
}

func (f *frontClients) unlink(one *sticky) {
	if one.previous != nil {
		one.previous.next = one.next
	} else {
		f.first = one.next
	}
	if one.next != nil {
		one.next.previous = one.previous
	} else {
		f.last = one.previous
	}
}
