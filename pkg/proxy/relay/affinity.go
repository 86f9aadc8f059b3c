package relay

import (
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// maxSticky and maxStickyFront are how many clients are remembered with the endpoint that they had (session affinity), some 150 bytes each.
	// Packets with made-up addresses reach them; upstream's rules of nftables and iptables have such bounds too.
	maxSticky      = 32768
	maxStickyFront = 16384
	// expireAtOnce is how many clients whose time is over go with each one who comes.
	expireAtOnce = 16
)

// stickies are the clients that all fronts remember. One beyond the bound of a front takes the place of the one there who was silent for longest;
// beyond that of all, at the front with the most. It is safe for concurrent use.
type stickies struct {
	mu      sync.Mutex
	fronts  ranking
	count   int
	evicted prometheus.Counter
}

// stickyFront are those of one front, the longest silent first.
type stickyFront struct {
	rank        holder
	clients     map[netip.Addr]*sticky
	first, last *sticky
}

// sticky is where a client went last.
type sticky struct {
	client         netip.Addr
	target         netip.AddrPort
	used           int64 // in nanoseconds
	previous, next *sticky
}

func newStickyFront() *stickyFront {
	f := &stickyFront{clients: map[netip.Addr]*sticky{}}
	f.rank.sticky = f
	return f
}

// get is where a client went within the affinity time.
func (s *stickies) get(f *stickyFront, client netip.Addr, now time.Time, affinity time.Duration) (netip.AddrPort, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(f, now, affinity, expireAtOnce)
	if one := f.clients[client]; one != nil && now.UnixNano()-one.used < int64(affinity) {
		return one.target, true
	}
	return netip.AddrPort{}, false
}

// set remembers where a client goes now.
func (s *stickies) set(f *stickyFront, client netip.Addr, target netip.AddrPort, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := f.clients[client]
	if one != nil {
		f.unlink(one)
	} else {
		switch {
		case len(f.clients) >= maxStickyFront:
			one = s.evict(f)
		case s.count >= maxSticky:
			one = s.evict(s.fronts.greediest().sticky)
		default:
			one = &sticky{}
		}
		one.client = client
		f.clients[client] = one
		s.count++
		s.fronts.add(&f.rank, 1)
	}
	one.target, one.used = target, now.UnixNano()
	f.link(one)
}

// evict forgets the longest silent of a front and returns its memory.
func (s *stickies) evict(f *stickyFront) *sticky {
	one := f.first
	s.forget(f, one)
	s.evicted.Inc()
	return one
}

func (s *stickies) forget(f *stickyFront, one *sticky) {
	f.unlink(one)
	delete(f.clients, one.client)
	s.count--
	s.fronts.add(&f.rank, -1)
}

// expire forgets up to n clients whose time is over, and says whether there may be more.
func (s *stickies) expire(f *stickyFront, now time.Time, affinity time.Duration, n int) bool {
	for range n {
		if f.first == nil || now.UnixNano()-f.first.used < int64(affinity) {
			return false
		}
		s.forget(f, f.first)
	}
	return true
}

// sweep forgets all clients whose time is over, and lets others have their turn between.
func (s *stickies) sweep(f *stickyFront, now time.Time, affinity time.Duration) {
	for more := true; more; {
		s.mu.Lock()
		more = s.expire(f, now, affinity, 16*expireAtOnce)
		s.mu.Unlock()
	}
}

// clear forgets all clients of a front.
func (s *stickies) clear(f *stickyFront) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count -= len(f.clients)
	s.fronts.add(&f.rank, -len(f.clients))
	f.clients, f.first, f.last = map[netip.Addr]*sticky{}, nil, nil
}

func (s *stickies) used() (all, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count, s.fronts.top
}

func (f *stickyFront) link(one *sticky) {
	if one.previous, one.next = f.last, nil; f.last != nil {
		f.last.next = one
	} else {
		f.first = one
	}
	f.last = one
}

func (f *stickyFront) unlink(one *sticky) {
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
