package relay

import (
	"net/netip"

	"github.com/winkube/winkube/pkg/proxy"
)

// A book knows who has what: members (connections or sessions) by client, by front and by endpoint. Every operation takes constant time, so that a
// flood costs no more than other traffic. It is not safe for concurrent use; the ledger is.

// occupant is a connection or a session as a book knows it.
type occupant interface {
	// seen is when something last moved, or would be the later the longer it should be kept, in seconds. It may be called from anywhere.
	seen() uint32
	// evict ends it, soon. here is the loop that calls, which may do it at once; nil: none.
	evict(here any)
}

// member is an occupant's entry.
type member struct {
	occupant occupant
	tab      *tab // nil: it is not in the book
	way      *way // nil: it has no endpoint that is counted
	placed   uint32
	seats    [4]seat
}

// Seats of a member.
const (
	ofClient = iota
	ofPair
	ofEarly
	ofWay
)

// tab is what came in at one front.
type tab struct {
	front        *front
	rank         holder
	pairs, early pool // early: half-open connections, sessions that may be one question
}

func newTab(f *front) *tab {
	t := &tab{front: f, pairs: pool{seat: ofPair}, early: pool{seat: ofEarly}}
	t.rank.tab = t
	return t
}

func (t *tab) service() proxy.ServiceName { return t.front.route.Load().Service.ServiceName }

// victim is who makes room at a front: of the early ones, where they are many, so that a flood of them does not push out what is established.
func (t *tab) victim(limit tier) *member {
	if t.early.count > limit.early.all {
		return t.early.victim()
	}
	return t.pairs.victim()
}

// way is what leads to one endpoint.
type way struct {
	pool
	endpoint netip.AddrPort
}

// book is of one protocol.
type book struct {
	replaces bool // a client that has its share gives up one of its own; otherwise it is refused, and clients are counted over all fronts
	count    int
	clients  pool
	fronts   ranking
	ways     map[netip.AddrPort]*way
	spare    *holder
	spares   int
	spareWay *way
}

func newBook(replaces bool) book {
	return book{replaces: replaces, clients: pool{seat: ofClient}, ways: map[netip.AddrPort]*way{}}
}

// cause names what was reached.
type cause uint8

const (
	noLimit       cause = iota
	clientLimit         // of a client over all fronts
	pairLimit           // of a client at a front
	earlyLimit          // of half-open connections of a front
	frontLimit          // of a front
	allLimit            // of everything
	portsLimit          // of source ports towards one endpoint
	portsOfClient       // of a client's source ports towards one endpoint
	filesLimit          // of the process or the system, which refused
	causes
)

// outcome is what entering meant.
type outcome struct {
	gone    []*member // left the book, and are to end
	tabs    []*tab    // where they were
	reached cause     // the last limit that was reached
	refused bool
}

// makeRoom is how many go at most for one who comes: one, and two after the limit has sunk, which is thus reached in small steps.
const makeRoom = 2

// enter counts a member, unless it is refused.
func (b *book) enter(t *tab, client netip.Addr, m *member, limit tier) (o outcome) {
	if !b.replaces {
		if judge(b.clients.usage(client), quota{limit.all + 1, limit.client}) == overShare {
			return outcome{reached: clientLimit, refused: true}
		}
		if !b.room(&o, &t.early, client, limit.early, earlyLimit, earlyLimit, t.early.victim) {
			return o
		}
	}
	if !b.room(&o, &t.pairs, client, quota{limit.front, limit.pair}, frontLimit, pairLimit, func() *member { return t.victim(limit) }) {
		return o
	}
	for n := 0; n < makeRoom && b.count >= limit.all; n++ {
		o.reached = allLimit
		v := b.giver(t, client, limit)
		if v == nil {
			o.refused = true
			return o
		}
		b.give(&o, v)
	}
	m.tab, m.placed = t, m.occupant.seen()
	b.count++
	b.fronts.add(&t.rank, 1)
	t.pairs.add(b, client, m)
	t.early.add(b, client, m)
	if !b.replaces {
		b.clients.add(b, client, m)
	}
	return o
}

// room makes room in one pool; false: the newcomer is refused.
func (b *book) room(o *outcome, p *pool, client netip.Addr, limit quota, all, one cause, victim func() *member) bool {
	for range makeRoom {
		var v *member
		switch verdict := judge(p.usage(client), limit); {
		case verdict == admitted:
			return true
		case verdict == takes:
			o.reached, v = all, victim()
		case verdict == overShare:
			o.reached = one
		default:
			o.reached = all
		}
		if v == nil && b.replaces {
			v = p.own(client)
		}
		if v == nil {
			o.refused = true
			return false
		}
		b.give(o, v)
	}
	return true
}

// giver is who makes room when everything is full; nil: no one.
func (b *book) giver(t *tab, client netip.Addr, limit tier) *member {
	view := crowd{all: b.count, client: b.clients.usage(client), fronts: usage{b.count, t.rank.count, b.fronts.top}, pair: t.pairs.usage(client)}
	if !b.replaces {
		view.clients = len(b.clients.holders)
		if view.client.own == 0 {
			view.clients++
		}
	}
	switch whoGives(view) {
	case byClient:
		return b.clients.victim()
	case byFront:
		return b.fronts.greediest().tab.victim(limit)
	case sameFront:
		return t.victim(limit)
	}
	if b.replaces {
		return t.pairs.own(client)
	}
	return nil
}

func (b *book) give(o *outcome, v *member) {
	o.gone, o.tabs = append(o.gone, v), append(o.tabs, v.tab)
	b.leave(v)
}

// settle notes that a member is established.
func (b *book) settle(m *member) {
	if m.tab != nil {
		m.tab.early.remove(b, m)
	}
}

// leave forgets a member. It may be called again.
func (b *book) leave(m *member) {
	t := m.tab
	if t == nil {
		return
	}
	b.leaveWay(m)
	t.early.remove(b, m)
	t.pairs.remove(b, m)
	b.clients.remove(b, m)
	b.fronts.add(&t.rank, -1)
	b.count--
	m.tab = nil
}

// lead counts a member among those to an endpoint.
func (b *book) lead(m *member, endpoint netip.AddrPort, limit quota) (o outcome) {
	if m.tab == nil { // it was given up
		return outcome{refused: true}
	}
	client := m.seats[ofPair].holder.client
	w := b.ways[endpoint]
	if w == nil {
		if w = b.spareWay; w == nil {
			w = &way{pool: pool{seat: ofWay}}
		}
		b.spareWay, w.endpoint = nil, endpoint
		b.ways[endpoint] = w
	}
	if !b.room(&o, &w.pool, client, limit, portsLimit, portsOfClient, w.victim) {
		return o
	}
	b.ways[endpoint] = w // the last of the others may have gone
	if b.spareWay == w {
		b.spareWay = nil
	}
	w.add(b, client, m)
	m.way = w
	return o
}

func (b *book) leaveWay(m *member) {
	w := m.way
	if w == nil {
		return
	}
	m.way = nil
	if w.remove(b, m); w.count == 0 {
		delete(b.ways, w.endpoint)
		b.spareWay = w
	}
}

// mostToOne is the largest number of connections to one endpoint, and of those of one client.
func (b *book) mostToOne() (all, client int) {
	for _, w := range b.ways {
		all, client = max(all, w.count), max(client, w.top)
	}
	return all, client
}

// mostAtFront is the largest number that one client has at one front, and of early ones at one.
func (b *book) mostAtFront() (pair, early int) {
	for _, r := range b.fronts.ranks {
		for h := r.first; h != nil; h = h.next {
			pair, early = max(pair, h.tab.pairs.top), max(early, h.tab.early.count)
		}
	}
	return pair, early
}
