package limits

import "net/netip"

// Books consist of pools, which know how many members each client has, which client has the most, and which of its
// members was inactive for longest.

// seat is a member's position in a holder's list, in order of arrival.
type seat struct {
	holder         *holder
	member         *Member
	previous, next *seat
}

// holder is a client with its members in a pool.
type holder struct {
	rank        Ranked[holder]
	client      netip.Addr
	first, last *seat
	spare       *holder // the next holder in the list of unused ones
}

// smallPool is the size up to which an empty pool keeps its memory.
const smallPool = 64

// pool counts members by client.
type pool struct {
	ranking Ranking[holder]
	seat    int // index in Member.seats
	count   int
	peak    int
	holders map[netip.Addr]*holder
}

func (p *pool) usage(client netip.Addr) usage {
	out := usage{all: p.count, most: p.ranking.top}
	if h := p.holders[client]; h != nil {
		out.own = h.rank.count
	}
	return out
}

func (p *pool) add(b *book, client netip.Addr, m *Member) {
	h := p.holders[client]
	if h == nil {
		if p.holders == nil {
			p.holders = map[netip.Addr]*holder{}
		}
		if h = b.spare; h != nil {
			b.spare, h.spare = h.spare, nil
			b.spares--
		} else {
			h = &holder{}
			h.rank.Owner = h
		}
		h.client = client
		p.holders[client] = h
		p.peak = max(p.peak, len(p.holders))
	}
	p.ranking.Add(&h.rank, 1)
	p.count++
	s := &m.seats[p.seat]
	s.member = m
	h.append(s)
}

func (h *holder) append(s *seat) {
	s.holder, s.previous, s.next = h, h.last, nil
	if h.last != nil {
		h.last.next = s
	} else {
		h.first = s
	}
	h.last = s
}

func (h *holder) remove(s *seat) {
	if s.previous != nil {
		s.previous.next = s.next
	} else {
		h.first = s.next
	}
	if s.next != nil {
		s.next.previous = s.previous
	} else {
		h.last = s.previous
	}
	*s = seat{}
}

// maxSpares is how many unused holders are kept for new clients, so that a connection needs no memory beyond its own.
const maxSpares = 1024

func (p *pool) remove(b *book, m *Member) {
	s := &m.seats[p.seat]
	h := s.holder
	if h == nil {
		return
	}
	h.remove(s)
	p.ranking.Add(&h.rank, -1)
	p.count--
	if h.rank.count > 0 {
		return
	}
	delete(p.holders, h.client)
	if p.count == 0 && p.peak > smallPool {
		p.holders, p.peak = nil, 0
	}
	if b.spares < maxSpares {
		*h = holder{spare: b.spare}
		h.rank.Owner = h
		b.spare = h
		b.spares++
	}
}

// looks is how many members are checked to find one that was inactive for long.
const looks = 32

// victim returns a member of the client with the most that was inactive for long: the first one without activity since
// it arrived or was last checked. Active ones move to the end of the list.
func (p *pool) victim() *Member {
	var best *Member
	var oldest uint32
	for range looks {
		h := p.ranking.Greediest()
		if h == nil {
			break
		}
		m, seen, idle := h.look(p.seat)
		if best == nil || seen < oldest {
			best, oldest = m, seen
		}
		if idle {
			break
		}
		p.ranking.unlink(&h.rank)
		p.ranking.link(&h.rank)
	}
	return best
}

// look checks the first member, and moves it to the end if it was active.
func (h *holder) look(at int) (m *Member, seen uint32, idle bool) {
	s := h.first
	m = s.member
	if seen = m.Occupant.Seen(); seen <= m.placed {
		return m, seen, true
	}
	m.placed = seen
	h.remove(s)
	m.seats[at].member = m
	h.append(&m.seats[at])
	return m, seen, false
}

// own returns a client's member that was inactive for longest.
func (p *pool) own(client netip.Addr) *Member {
	h := p.holders[client]
	if h == nil {
		return nil
	}
	var best *Member
	var oldest uint32
	for range min(looks, h.rank.count) {
		m, seen, idle := h.look(p.seat)
		if best == nil || seen < oldest {
			best, oldest = m, seen
		}
		if idle {
			break
		}
	}
	return best
}
