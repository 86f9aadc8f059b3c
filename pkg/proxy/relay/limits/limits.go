// Package limits shares what this host and this process have among clients and fronts: descriptors, source ports, memory. It decides how much of it a
// front and a client get, who is refused, and who gives something up.
//
//	connection or session --Enter--> Ledger --lock--> book: pools of clients, fronts, endpoints --judge--> admitted, refused, or another one leaves
//
// TCP refuses a client that has its share, since its connections are established and worth more than the next one. UDP refuses no client: its
// own longest silent session goes. Where a limit was reached that many share, whoever has the most gives up what has been silent for longest.
//
// limits.go and book.go do no I/O; only the Ledger logs, counts and warns.
package limits

const (
	// defaultShare is the part of each limit, in percent, that one client's address may have.
	defaultShare = 50
	// defaultUDP is the part of this host's source ports, in percent, that UDP sessions may have.
	defaultUDP = 50
	// leastOwn and mostOwn bound the descriptors that are kept back for the proxy's own work: the API server, health checks, netlink, new listeners.
	leastOwn, mostOwn = 128, 4096
	// mostFiles is what is used of a limit that is larger, or none.
	mostFiles = 1 << 20
	// leastEarly is how many half-open connections a front may have at least.
	leastEarly = 16
	// maxSessions is the number of UDP sessions of one front.
	maxSessions = 8192
	// dominant is the part of all connections, one in so many, from which a client is the first to give one up, whatever front it uses.
	dominant = 16
)

// Capacity is what there is for all fronts together.
type Capacity struct {
	Files   int  // descriptors that this process may have open
	Ports   int  // source ports of this host
	OnePool bool // a source port serves one connection, whatever its endpoint
	Share   int  // percent of each limit for one client's address, from 1 to 100; anything else: 50
	UDP     int  // percent of the source ports for UDP sessions, from 1 to 100; anything else: 50
}

// limits follow from the Capacity.
type limits struct {
	files       int   // for connections, two each, for sessions and listening sockets, one each
	sessions    int   // UDP sessions at most
	connections int   // TCP connections at most, whatever files say
	pipes       int   // of two descriptors each, from those that are kept back
	ports       quota // connections to one endpoint
	share       int
}

// quota limits a pool: all of it, and what one client has of it.
type quota struct{ all, client int }

// tier limits one protocol.
type tier struct {
	all, client int // together; of one client's address
	front, pair int // of one front; of one client there
	early       quota
}

// part is the share of n in percent, and at least one.
func part(n, share int) int { return max(1, n*share/100) }

func (c Capacity) limits() limits {
	share := c.Share
	if share <= 0 || share > 100 {
		share = defaultShare
	}
	own := min(max(c.Files/16, leastOwn), mostOwn, c.Files/2)
	l := limits{files: c.Files - own, pipes: own / 8, share: share, connections: c.Files}
	// Each UDP session has a source port that no other UDP socket of the host has, so half of them stay for the host's own questions. Sessions could share
	// ports across endpoints (SO_REUSEPORT, then connect), but then an answer that comes between the two calls is queued on a socket of another client,
	// and ports from a small pool are easier to guess.
	udp := c.UDP
	if udp <= 0 || udp > 100 {
		udp = defaultUDP
	}
	l.sessions = max(1, min(c.Ports*udp/100, l.files/4))
	// Of the ports towards one endpoint some stay for the host's own connections to it, and for the kernel's search, which slows down near the end.
	l.ports = quota{max(1, c.Ports-c.Ports/16), part(c.Ports, share)}
	if c.OnePool {
		l.connections = l.ports.all
	}
	return l
}

// keeps are files for sessions, however many connections there are.
func (l limits) keeps() int { return min(l.files/32, l.sessions) }

// tcp are the limits of connections beside what else has descriptors.
func (l limits) tcp(sessions, listening int) tier {
	all := max(1, min(l.connections, (l.files-listening-max(sessions, l.keeps()))/2))
	return l.tier(all, all-all/8)
}

// udp are the limits of sessions.
func (l limits) udp(connections, listening int) tier {
	all := max(1, min(l.sessions, max(l.keeps(), l.files-listening-2*connections)))
	return l.tier(all, min(maxSessions, max(1, all/2)))
}

func (l limits) tier(all, front int) tier {
	early := min(front, max(leastEarly, front/4))
	return tier{all, part(all, l.share), front, part(front, l.share), quota{early, part(early, l.share)}}
}

// verdict is what becomes of a newcomer in one pool.
type verdict uint8

const (
	admitted  verdict = iota
	overShare         // the client has its share
	full              // the pool is full, and no other client has clearly more
	takes             // the pool is full: who has the most gives one up
)

// usage is how a pool is used, for a client that asks.
type usage struct{ all, own, most int }

// judge decides about a newcomer in a pool. Two who have nearly as much as each other do not take from each other in turn.
func judge(h usage, b quota) verdict {
	switch {
	case h.own >= b.client:
		return overShare
	case h.all < b.all:
		return admitted
	case h.most > 0 && (h.own == 0 || h.most >= h.own+2):
		return takes
	}
	return full
}

// crowd is how everything of a protocol is used when it is full, for a client that asks at a front.
type crowd struct {
	all, clients int   // members, and distinct clients, the newcomer included
	client       usage // over all fronts; nothing where clients are not counted so
	fronts       usage // own: of the front
	pair         usage // within the front
}

// giver is who makes room.
type giver uint8

const (
	noOne     giver = iota
	byClient        // the client with the most
	byFront         // the front with the most, there the client with the most
	sameFront       // the client with the most at the same front
)

// whoGives decides who makes room when everything is full. A client that dominates comes first, whatever fronts it uses. Many clients of one front, or
// forged addresses, look small each: then the front with the most gives. A client below its fair share is never refused while another
// one is above.
func whoGives(c crowd) giver {
	switch {
	case c.client.most > c.all/dominant && c.client.most >= c.client.own+2:
		return byClient
	case c.fronts.most >= c.fronts.own+2 || c.fronts.own == 0 && c.fronts.most > 0:
		return byFront
	case c.pair.most > 0 && (c.pair.own == 0 || c.pair.most >= c.pair.own+2):
		return sameFront
	case c.clients > 0 && c.client.own < c.all/c.clients && c.client.most > c.client.own:
		return byClient
	}
	return noOne
}
