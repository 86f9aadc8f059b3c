package relay

import "net/netip"

// Pools are what books are made of: who has how many members, who has the most, and who of those was silent for longest.

// seat is a member's place with a holder, in the order of arrival.
type seat struct {
	holder         *holder
	member         *member
	previous, next *seat
}

// holder has members of a pool: a client, or a front.
type holder struct {
	client         netip.Addr
	tab            *tab         // of a front
	sticky         *stickyFront // likewise, of clients that it remembers
	count          int
	first, last    *seat
	previous, next *holder // with the same count
}

// ranking orders holders by their count.
type ranking struct {
	ranks []rank // by count
	top   int    // the most that one has
}

type rank struct{ first, last *holder }

func (r *ranking) unlink(h *holder) {
	at := &r.ranks[h.count]
	if h.previous != nil {
		h.previous.next = h.next
	} else {
		at.first = h.next
	}
	if h.next != nil {
		h.next.previous = h.previous
	} else {
		at.last = h.previous
	}
	h.previous, h.next = nil, nil
}

func (r *ranking) link(h *holder) {
	at := &r.ranks[h.count]
	if h.previous = at.last; at.last != nil {
		at.last.next = h
	} else {
		at.first = h
	}
	at.last = h
}

// add gives a holder more, or less.
func (r *ranking) add(h *holder, by int) {
	if h.count > 0 {
		r.unlink(h)
	}
	h.count += by
	for h.count >= len(r.ranks) {
		r.ranks = append(r.ranks, rank{})
	}
	if h.count > 0 {
		r.link(h)
	}
	r.top = max(r.top, h.count)
	for r.top > 0 && r.ranks[r.top].first == nil {
		r.top-- // at most to where the holder went
	}
	if r.top == 0 && len(r.ranks) > smallPool {
		r.ranks = nil
	}
}

// greediest is who has had the most for longest; nil: none has anything.
func (r *ranking) greediest() *holder {
	if r.top == 0 {
		return nil
	}
	return r.ranks[r.top].first
}

// smallPool is up to which size an empty pool keeps its memory.
const smallPool = 64

// pool counts members by client.
type pool struct {
	ranking
	seat    int // which of a member's
	count   int
	peak    int
	holders map[netip.Addr]*holder
}

func (p *pool) usage(client netip.Addr) usage {
	out := usage{all: p.count, most: p.top}
	if h := p.holders[client]; h != nil {
		out.own = h.count
	}
	return out
}

func (p *pool) add(b *book, client netip.Addr, m *member) {
	h := p.holders[client]
	if h == nil {
		if p.holders == nil {
			p.holders = map[netip.Addr]*holder{}
		}
		if h = b.spare; h != nil {
			b.spare, h.next = h.next, nil
			b.spares--
		} else {
			h = &holder{}
		}
		h.client = client
		p.holders[client] = h
		p.peak = max(p.peak, len(p.holders))
	}
	p.ranking.add(h, 1)
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

// maxSpares holders are kept for the next clients, so that a connection needs no memory beyond its own.
const maxSpares = 1024

func (p *pool) remove(b *book, m *member) {
	s := &m.seats[p.seat]
	h := s.holder
	if h == nil {
		return
	}
	h.remove(s)
	p.ranking.add(h, -1)
	p.count--
	if h.count > 0 {
		return
	}
	delete(p.holders, h.client)
	if p.count == 0 && p.peak > smallPool {
		p.holders, p.peak = nil, 0
	}
	if b.spares < maxSpares {
		*h = holder{next: b.spare}
		b.spare = h
		b.spares++
	}
}

// looks is how many members are looked at to find one that has long been silent.
const looks = 32

// victim is a member of the greediest that has been silent for long: the first that was so since it came or was looked at last. Those that were
// not go to the end of the line.
func (p *pool) victim() *member {
	var best *member
	var oldest uint32
	for range looks {
		h := p.greediest()
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
		p.unlink(h)
		p.link(h)
	}
	return best
}

// look takes the first in line, and sends it to the end if it was busy.
func (h *holder) look(at int) (m *member, seen uint32, idle bool) {
	s := h.first
	m = s.member
	if seen = m.occupant.seen(); seen <= m.placed {
		return m, seen, true
	}
	m.placed = seen
	h.remove(s)
	m.seats[at].member = m
	h.append(&m.seats[at])
	return m, seen, false
}

// own is a client's longest silent member.
func (p *pool) own(client netip.Addr) *member {
	h := p.holders[client]
	if h == nil {
		return nil
	}
	var best *member
	var oldest uint32
	for range min(looks, h.count) {
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
