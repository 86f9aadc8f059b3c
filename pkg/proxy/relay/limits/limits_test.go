package limits

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
)

func TestJudge(t *testing.T) {
	limit := quota{all: 10, client: 5}
	for _, c := range []struct {
		name           string
		all, own, most int
		want           verdict
	}{
		{"empty", 0, 0, 0, admitted},
		{"room", 9, 4, 5, admitted},
		{"its share, and room", 5, 5, 5, overShare},
		{"its share, and full", 10, 5, 5, overShare},
		{"new, full of one greedy", 10, 0, 5, takes},
		{"new, full of single ones", 10, 0, 1, takes},
		{"has few, another many", 10, 2, 5, takes},
		{"as much as others", 10, 3, 3, full},
		{"one less than another, which would take it back", 10, 3, 4, full},
		{"two less", 10, 3, 5, takes},
	} {
		if got := judge(usage{c.all, c.own, c.most}, limit); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	if got := judge(usage{}, quota{0, 1}); got != full {
		t.Errorf("a pool of nothing: %d", got)
	}
}

func TestWhoGives(t *testing.T) {
	for _, c := range []struct {
		name string
		c    crowd
		want giver
	}{
		{"one pod has half, by many fronts of few each; the victim's front has the most", crowd{1600, 51, usage{1600, 0, 800}, usage{1600, 50, 50}, usage{50, 0, 1}}, byClient},
		{"single connections of many clients at one front", crowd{1600, 1500, usage{1600, 0, 3}, usage{1600, 2, 1500}, usage{2, 0, 1}}, byFront},
		{"a client that has a few, beside them", crowd{1600, 1500, usage{1600, 3, 3}, usage{1600, 3, 1500}, usage{3, 3, 3}}, byFront},
		{"a newcomer at the crowded front", crowd{1600, 1600, usage{1600, 0, 1}, usage{1600, 1500, 1500}, usage{1500, 0, 1}}, sameFront},
		{"one of the crowd asks for a second", crowd{1600, 1600, usage{1600, 1, 1}, usage{1600, 1500, 1500}, usage{1500, 1, 1}}, noOne},
		{"the greediest client asks, at the greediest front", crowd{1600, 20, usage{1600, 800, 800}, usage{1600, 900, 900}, usage{900, 800, 800}}, noOne},
		{"below its fair share, at the greediest front where it has the most", crowd{96, 24, usage{96, 2, 6}, usage{96, 4, 4}, usage{4, 2, 2}}, byClient},
		{"packets: a front of few, beside a flooded one", crowd{1600, 0, usage{}, usage{1600, 10, 800}, usage{10, 9, 9}}, byFront},
		{"packets: a client with many, at the flooded front", crowd{1600, 0, usage{}, usage{1600, 800, 800}, usage{800, 1, 400}}, sameFront},
		{"packets: one of many made-up ones", crowd{1600, 0, usage{}, usage{1600, 800, 800}, usage{800, 1, 1}}, noOne}, // its own oldest is removed
		{"nothing is there to give", crowd{0, 1, usage{}, usage{}, usage{}}, noOne},
	} {
		if got := whoGives(c.c); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		name                                           string
		c                                              Capacity
		files, sessions, ofFront, conns, client, pipes int
		ports                                          quota
	}{
		{"systemd's own", Capacity{Files: 524288, Ports: 28232}, 520192, 14116, 7058, 253038, 126519, 512, quota{26468, 14116}},
		{"a small process", Capacity{Files: 1024, Ports: 28232}, 896, 224, 112, 434, 217, 16, quota{26468, 14116}},
		{"a tiny one", Capacity{Files: 64, Ports: 28232}, 32, 8, 4, 15, 7, 4, quota{26468, 14116}},
		{"Windows", Capacity{Files: 1 << 20, Ports: 16384, OnePool: true}, 1<<20 - 4096, 8192, 4096, 15360, 7680, 512, quota{15360, 8192}},
		{"a quarter for each client", Capacity{Files: 524288, Ports: 28232, Share: 25}, 520192, 14116, 7058, 253038, 63259, 512, quota{26468, 7058}},
		{"tables as kernels have them below 4 GiB", Capacity{Files: 524288, Ports: 28232, Tracked: 65536}, 520192, 4096, 2048, 16384, 8192, 512, quota{26468, 14116}},
		{"a table as the proxy makes it", Capacity{Files: 524288, Ports: 28232, Tracked: 131072}, 520192, 8192, 4096, 32768, 16384, 512, quota{26468, 14116}},
		{"a tiny table", Capacity{Files: 524288, Ports: 28232, Tracked: 1}, 520192, 1, 1, 1, 1, 512, quota{26468, 14116}},
		{"nothing known", Capacity{}, 0, 1, 1, 1, 1, 0, quota{1, 1}},
	} {
		l := c.c.limits()
		tcp, udp := l.tcp(0, 0), l.udp(0, 0)
		got := fmt.Sprint(l.files, l.sessions, udp.front, tcp.all, tcp.client, l.pipes, l.ports)
		if want := fmt.Sprint(c.files, c.sessions, c.ofFront, c.conns, c.client, c.pipes, c.ports); got != want {
			t.Errorf("%s: %s, want %s", c.name, got, want)
		}
	}
	// However the two protocols share, descriptors are not assigned twice.
	for range 10000 {
		c := Capacity{Files: 64 + rand.IntN(1<<rand.IntN(20)), Ports: rand.IntN(60000), Share: rand.IntN(120)}
		l := c.limits()
		listening := rand.IntN(l.files/2 + 1)
		sessions := rand.IntN(l.sessions + 1)
		if tcp := l.tcp(sessions, listening); tcp.all > 1 && 2*tcp.all+sessions+listening > l.files {
			t.Fatalf("%+v with %d sessions and %d fronts: %+v", c, sessions, listening, tcp)
		}
		conns := rand.IntN(l.tcp(0, listening).all + 1)
		if udp := l.udp(conns, listening); udp.all > l.keeps() && udp.all > 1 && 2*conns+udp.all+listening > l.files || udp.all > max(1, c.Ports/2) {
			t.Fatalf("%+v with %d connections and %d fronts: %+v", c, conns, listening, udp)
		}
	}
}

// ghost is an occupant without a socket.
type ghost struct {
	member Member
	last   uint32
	client netip.Addr
	gone   bool
}

func (g *ghost) Seen() uint32 { return g.last }
func (g *ghost) Evict(any)    { g.gone = true }

// world is a book with a slow, independent view of it.
type world struct {
	t      testing.TB
	book   book
	limit  tier
	ports  quota
	tabs   []*Front
	ghosts []*ghost
	now    uint32
}

func newWorld(t testing.TB, replaces bool, limit tier) *world {
	w := &world{t: t, book: newBook(replaces), limit: limit, ports: quota{limit.front, limit.pair}}
	for range 4 {
		w.tabs = append(w.tabs, NewFront("", nil))
	}
	return w
}

func addrOfClient(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
}

// enter adds a client's member, and checks who was refused and who was removed.
func (w *world) enter(front, client int) *ghost {
	w.t.Helper()
	w.now++
	g := &ghost{client: addrOfClient(client), last: w.now}
	g.member.Occupant = g
	before := w.totals()
	pairs := w.tabs[front].pairs.usage(g.client)
	o := w.book.enter(w.tabs[front], g.client, &g.member, w.limit)
	w.bury(o.gone)
	if !o.refused {
		w.ghosts = append(w.ghosts, g)
		return g
	}
	if w.book.replaces {
		w.t.Fatalf("a session of %s is refused", g.client)
	}
	switch o.reached {
	case clientLimit:
		if before[g.client] < w.limit.client {
			w.t.Fatalf("%s is refused with %d, and may have %d", g.client, before[g.client], w.limit.client)
		}
	case pairLimit:
		if pairs.own < w.limit.pair {
			w.t.Fatalf("%s is refused with %d at this front, and may have %d", g.client, pairs.own, w.limit.pair)
		}
	case allLimit:
		if before[g.client] == 0 {
			before[g.client] = 0 // it counts as one of the clients
		}
		fair := w.limit.all / len(before)
		for other, n := range before {
			if before[g.client] < fair && n > fair {
				w.t.Fatalf("%s with %d of %d is refused while %s has %d", g.client, before[g.client], fair, other, n)
			}
		}
	case frontLimit:
		if pairs.own == 0 || pairs.most >= pairs.own+2 {
			w.t.Fatalf("%s with %d at this front is refused while another has %d", g.client, pairs.own, pairs.most)
		}
	}
	return nil
}

func (w *world) totals() map[netip.Addr]int {
	out := map[netip.Addr]int{}
	for _, g := range w.ghosts {
		out[g.client]++
	}
	return out
}

func (w *world) bury(gone []*Member) {
	for _, m := range gone {
		m.Occupant.Evict(nil)
	}
	kept := w.ghosts[:0]
	for _, g := range w.ghosts {
		if g.member.front != nil {
			kept = append(kept, g)
		} else if !g.gone {
			w.t.Fatalf("%s left the book and was not told", g.client)
		}
	}
	w.ghosts = kept
}

// check counts everything again.
func (w *world) check() {
	w.t.Helper()
	type pair struct {
		tab    *Front
		client netip.Addr
	}
	clients, fronts, pairs, early, ways := map[netip.Addr]int{}, map[*Front]int{}, map[pair]int{}, map[*Front]int{}, map[netip.AddrPort]int{}
	for _, g := range w.ghosts {
		clients[g.client]++
		fronts[g.member.front]++
		pairs[pair{g.member.front, g.client}]++
		if g.member.seats[ofEarly].holder != nil {
			early[g.member.front]++
		}
		if g.member.way != nil {
			ways[g.member.way.endpoint]++
		}
	}
	if w.book.count != len(w.ghosts) || w.book.count > w.limit.all || len(ways) != len(w.book.ways) {
		w.t.Fatalf("%d in the book, %d are there, %d may be; %d ways of %d", w.book.count, len(w.ghosts), w.limit.all, len(w.book.ways), len(ways))
	}
	for client, n := range clients {
		if got := w.book.clients.usage(client); !w.book.replaces && (got.own != n || got.most < n || n > w.limit.client) {
			w.t.Fatalf("%s has %d, in the book %+v; %d may be", client, n, got, w.limit.client)
		}
	}
	for of, n := range pairs {
		if got := of.tab.pairs.usage(of.client); got.own != n || got.most < n || n > w.limit.pair {
			w.t.Fatalf("%s has %d at a front, in the book %+v; %d may be", of.client, n, got, w.limit.pair)
		}
	}
	most := 0
	for _, tab := range w.tabs {
		most = max(most, fronts[tab])
		if tab.rank.count != fronts[tab] || tab.pairs.count != fronts[tab] || fronts[tab] > w.limit.front || tab.early.count != early[tab] || !w.book.replaces && early[tab] > w.limit.early.all {
			w.t.Fatalf("a front has %d, %d of them early; in the book %d and %d", fronts[tab], early[tab], tab.rank.count, tab.early.count)
		}
	}
	if w.book.fronts.top != most {
		w.t.Fatalf("the front with the most has %d, in the book %d", most, w.book.fronts.top)
	}
	for endpoint, n := range ways {
		if got := w.book.ways[endpoint]; got == nil || got.count != n || n > w.ports.all || got.ranking.top > w.ports.client {
			w.t.Fatalf("%d lead to %s, in the book %+v", n, endpoint, got)
		}
	}
}

// FuzzBook: whatever happens, no limit is exceeded, and a client with little is not refused because of one with much.
func FuzzBook(f *testing.F) {
	f.Add(true, []byte{0, 0, 1, 0, 2, 0, 3, 0, 200, 1, 210, 0})
	f.Add(false, []byte{0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 240, 1, 230, 0, 220, 2, 17, 0})
	for seed := range byte(4) {
		r := rand.New(rand.NewChaCha8([32]byte{seed}))
		data := make([]byte, 4000)
		for i := range data {
			data[i] = byte(r.IntN(256))
		}
		f.Add(seed%2 == 0, data)
	}
	f.Fuzz(func(t *testing.T, packets bool, data []byte) {
		w := newWorld(t, packets, tier{all: 40, client: 20, front: 24, pair: 12, early: quota{8, 4}})
		for i := 0; i+1 < len(data); i += 2 {
			at := int(data[i+1])
			switch op := data[i]; {
			case op < 192: // a few clients connect often, many rarely
				client := int(op) % 64
				if at >= 64 {
					client %= 3
				}
				w.enter(at%4, client)
			case len(w.ghosts) == 0:
			case op < 208:
				g := w.ghosts[at%len(w.ghosts)]
				g.gone = true
				w.book.leave(&g.member)
				w.bury(nil)
			case op < 224:
				w.book.established(&w.ghosts[at%len(w.ghosts)].member)
			case op < 232:
				w.now++
				w.ghosts[at%len(w.ghosts)].last = w.now
			default:
				m := &w.ghosts[at%len(w.ghosts)].member
				w.book.leaveWay(m)
				o := w.book.lead(m, netip.AddrPortFrom(addrOfClient(at%3), 80), w.ports)
				w.bury(o.gone)
			}
			w.check()
		}
		for _, g := range w.ghosts {
			g.gone = true
			w.book.leave(&g.member)
		}
		w.bury(nil)
		w.check()
	})
}

// TestEverybodyIsServed: while one client floods, each other client gets in, and keeps its connections as long as it
// uses them.
func TestEverybodyIsServed(t *testing.T) {
	for _, packets := range []bool{false, true} {
		w := newWorld(t, packets, tier{all: 400, client: 200, front: 300, pair: 150, early: quota{300, 150}})
		friend := w.enter(0, 1)
		w.book.established(&friend.member)
		for n := range 5000 {
			w.enter(n%2, 2)    // one greedy client at two fronts
			w.enter(1, 1000+n) // and a crowd at one, or forged addresses
			if friend.last = w.now; n%100 == 0 && w.enter(2, 100000+n) == nil {
				t.Fatalf("packets %v: after %d a newcomer at a quiet front is refused", packets, n)
			}
			if n%100 == 50 && w.enter(1, 200000+n) == nil {
				t.Fatalf("packets %v: after %d a newcomer at the crowded front is refused", packets, n)
			}
		}
		w.check()
		if friend.gone {
			t.Errorf("packets %v: a client with one that is in use has lost it", packets)
		}
	}
}

// TestSunkenLimit: after the limit was lowered, connections are removed a few at a time, with each new one.
func TestSunkenLimit(t *testing.T) {
	w := newWorld(t, false, tier{all: 400, client: 400, front: 400, pair: 400, early: quota{400, 400}})
	for range 300 {
		w.enter(0, 1)
	}
	w.limit = tier{all: 100, client: 400, front: 90, pair: 400, early: quota{400, 400}}
	for n := range 250 {
		before := w.book.count
		if w.enter(1+n%3, 2+n); w.book.count < before-2*makeRoom {
			t.Fatalf("newcomer %d: %d went together", n, before-w.book.count)
		}
	}
	w.check()
}
