package limits

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
)

// A book records who has what: members (connections or sessions) by client, by front and by endpoint. Every operation
// takes constant time, so that a flood costs no more than other traffic. It is not safe for concurrent use; the Ledger
// is.

// Occupant is a connection or a session as the Ledger sees it.
type Occupant interface {
	// Seen returns when it was last active; occupants that should be kept longer may return a later time. In seconds of
	// SecondsAt. It must be safe for concurrent use.
	Seen() uint32
	// Evict ends it soon. here identifies the caller of the Ledger, such as a loop, which may end it immediately; nil:
	// unknown.
	Evict(here any)
}

// Member is an Occupant's entry. The Occupant owns it, sets Occupant before Enter and leaves the rest to the Ledger.
type Member struct {
	Occupant Occupant
	front    *Front // nil: not in the book
	way      *way   // nil: no counted endpoint
	placed   uint32
	seats    [4]seat
}

// Indexes of a member's seats.
const (
	ofClient = iota
	ofPair
	ofEarly
	ofWay
)

// Front is the members of one front of the proxy.
type Front struct {
	protocol     v1.Protocol
	routed       Routed
	rank         Ranked[Front]
	pairs, early pool // early: half-open connections, or sessions that may be a single question
}

// Routed returns the current Route of a front.
type Routed interface{ Route() *proxy.Route }

// NewFront returns a Front without members. protocol is TCP or UDP.
func NewFront(protocol v1.Protocol, routed Routed) *Front {
	f := &Front{protocol: protocol, routed: routed, pairs: pool{seat: ofPair}, early: pool{seat: ofEarly}}
	f.rank.Owner = f
	return f
}

func (f *Front) service() proxy.ServiceName { return f.routed.Route().Service.ServiceName }

// victim selects the member that must make room at a front: an early one if there are many, so that a flood of them
// does not evict established ones.
func (f *Front) victim(limit tier) *Member {
	if f.early.count > limit.early.all {
		return f.early.victim()
	}
	return f.pairs.victim()
}

// way is the members that are connected to one endpoint.
type way struct {
	pool
	endpoint netip.AddrPort
}

// book covers one protocol.
type book struct {
	replaces bool // a client that has its share loses one of its members; otherwise it is refused, and clients are counted over all fronts
	count    int
	clients  pool
	fronts   Ranking[Front]
	ways     map[netip.AddrPort]*way
	spare    *holder
	spares   int
	spareWay *way
}

func newBook(replaces bool) book {
	return book{replaces: replaces, clients: pool{seat: ofClient}, ways: map[netip.AddrPort]*way{}}
}

// cause identifies a limit that was reached.
type cause uint8

const (
	noLimit       cause = iota
	clientLimit         // of a client over all fronts
	pairLimit           // of a client at a front
	earlyLimit          // of half-open connections at a front
	frontLimit          // of a front
	allLimit            // of everything
	portsLimit          // of source ports towards one endpoint
	portsOfClient       // of a client's source ports towards one endpoint
	filesLimit          // of the process or the system, which refused
	causes
)

// outcome is the result of adding a member.
type outcome struct {
	gone    []*Member // removed from the book; the caller must end them
	fronts  []*Front  // their fronts
	reached cause     // the last limit that was reached
	refused bool
}

// makeRoom is how many members are removed at most for a new one: one, or two after the limit was lowered, so that it
// is reached in small steps.
const makeRoom = 2

// enter adds a member, unless it is refused.
func (b *book) enter(f *Front, client netip.Addr, m *Member, limit tier) (o outcome) {
	if !b.replaces {
		if judge(b.clients.usage(client), quota{limit.all + 1, limit.client}) == overShare {
			return outcome{reached: clientLimit, refused: true}
		}
		if !b.room(&o, &f.early, client, limit.early, earlyLimit, earlyLimit, f.early.victim) {
			return o
		}
	}
	if !b.room(&o, &f.pairs, client, quota{limit.front, limit.pair}, frontLimit, pairLimit, func() *Member { return f.victim(limit) }) {
		return o
	}
	for n := 0; n < makeRoom && b.count >= limit.all; n++ {
		o.reached = allLimit
		v := b.giver(f, client, limit)
		if v == nil {
			o.refused = true
			return o
		}
		b.give(&o, v)
	}
	m.front, m.placed = f, m.Occupant.Seen()
	b.count++
	b.fronts.Add(&f.rank, 1)
	f.pairs.add(b, client, m)
	f.early.add(b, client, m)
	if !b.replaces {
		b.clients.add(b, client, m)
	}
	return o
}

// room makes room in one pool; false: the new member is refused.
func (b *book) room(o *outcome, p *pool, client netip.Addr, limit quota, all, one cause, victim func() *Member) bool {
	for range makeRoom {
		var v *Member
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

// giver selects the member that makes room when everything is full; nil: none.
func (b *book) giver(f *Front, client netip.Addr, limit tier) *Member {
	view := crowd{all: b.count, client: b.clients.usage(client), fronts: usage{b.count, f.rank.count, b.fronts.top}, pair: f.pairs.usage(client)}
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
		return b.fronts.Greediest().victim(limit)
	case sameFront:
		return f.victim(limit)
	}
	if b.replaces {
		return f.pairs.own(client)
	}
	return nil
}

func (b *book) give(o *outcome, v *Member) {
	o.gone, o.fronts = append(o.gone, v), append(o.fronts, v.front)
	b.leave(v)
}

// established records that a member is no longer half-open.
func (b *book) established(m *Member) {
	if m.front != nil {
		m.front.early.remove(b, m)
	}
}

// leave removes a member. Idempotent.
func (b *book) leave(m *Member) {
	f := m.front
	if f == nil {
		return
	}
	b.leaveWay(m)
	f.early.remove(b, m)
	f.pairs.remove(b, m)
	b.clients.remove(b, m)
	b.fronts.Add(&f.rank, -1)
	b.count--
	m.front = nil
}

// lead counts a member among those connected to an endpoint.
func (b *book) lead(m *Member, endpoint netip.AddrPort, limit quota) (o outcome) {
	if m.front == nil { // evicted already
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
	b.ways[endpoint] = w // the last other member may have left
	if b.spareWay == w {
		b.spareWay = nil
	}
	w.add(b, client, m)
	m.way = w
	return o
}

func (b *book) leaveWay(m *Member) {
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

// mostToOne returns the largest number of connections to one endpoint, and the largest of one client to one endpoint.
func (b *book) mostToOne() (all, client int) {
	for _, w := range b.ways {
		all, client = max(all, w.count), max(client, w.ranking.top)
	}
	return all, client
}

// mostAtFront returns the largest number of members of one client at one front, and of early ones at one front.
func (b *book) mostAtFront() (pair, early int) {
	for _, r := range b.fronts.ranks {
		for f := r.first; f != nil; f = f.next {
			pair, early = max(pair, f.Owner.pairs.ranking.top), max(early, f.Owner.early.count)
		}
	}
	return pair, early
}
