// Package limits divides the resources of this host and this process among clients and fronts: descriptors, source
// ports, memory. It decides how much a front and a client get, who is refused, and who must give up something.
//
//	connection or session --Enter--> Ledger --lock--> book: pools of clients, fronts, endpoints --judge--> admitted, refused, or another one leaves
//
// For TCP it refuses a client that has its share, because established connections are worth more than a new one. For
// UDP it refuses no client: the client's own least recently active session ends. If a limit that many share is reached,
// the one with the most gives up its least recently active member.
//
// limits.go and book.go do no I/O; only the Ledger logs, counts and warns.
package limits

const (
	// defaultShare is the percentage of each limit that one client address may use.
	defaultShare = 50
	// defaultUDP is the percentage of this host's source ports that UDP sessions may use.
	defaultUDP = 50
	// leastOwn and mostOwn bound the descriptors that are reserved for the proxy's own work: the API server, health
	// checks, netlink, new listeners.
	leastOwn, mostOwn = 128, 4096
	// mostFiles is used if the limit is higher, or there is none.
	mostFiles = 1 << 20
	// leastEarly is the minimum limit of half-open connections of a front.
	leastEarly = 16
	// maxSessions is the maximum number of UDP sessions of one front.
	maxSessions = 8192
	// dominant: a client with more than 1/dominant of all connections is the first to give up one, whatever front it
	// uses.
	dominant = 16
)

// Capacity is the resources for all fronts together.
type Capacity struct {
	Files   int  // descriptors that this process may have open
	Ports   int  // source ports of this host
	Tracked int  // entries of this host's connection tracking; 0: it tracks nothing
	OnePool bool // a source port serves one connection, whatever its endpoint
	Share   int  // percentage of each limit for one client address, from 1 to 100; anything else: 50
	UDP     int  // percentage of the source ports for UDP sessions, from 1 to 100; anything else: 50
}

// limits are derived from the Capacity.
type limits struct {
	files       int   // two for each connection, one for each session and listening socket
	sessions    int   // maximum number of UDP sessions
	connections int   // maximum number of TCP connections, whatever files allows
	pipes       int   // of two descriptors each, taken from the reserve
	ports       quota // connections to one endpoint
	share       int
}

// quota limits a pool: its total, and the share of one client.
type quota struct{ all, client int }

// tier limits one protocol.
type tier struct {
	all, client int // total; for one client address
	front, pair int // for one front; for one client there
	early       quota
}

// part returns share percent of n, and at least one.
func part(n, share int) int { return max(1, n*share/100) }

func (c Capacity) limits() limits {
	share := c.Share
	if share <= 0 || share > 100 {
		share = defaultShare
	}
	own := min(max(c.Files/16, leastOwn), mostOwn, c.Files/2)
	l := limits{files: c.Files - own, pipes: own / 8, share: share, connections: c.Files}
	// Each UDP session has a unique source port among the host's UDP sockets, so half of the ports stay available for
	// the host's own requests. Sessions could share ports across endpoints (SO_REUSEPORT, then connect). But then a
	// reply that arrives between the two calls is queued on another client's socket, and ports from a small pool are
	// easier to guess.
	udp := c.UDP
	if udp <= 0 || udp > 100 {
		udp = defaultUDP
	}
	l.sessions = max(1, min(c.Ports*udp/100, l.files/4))
	// A relayed connection has two entries in the table of connection tracking: the client's and the endpoint's. If the table is
	// full, the kernel drops packets of all new connections of this host. So three eighths stay for others.
	if c.Tracked > 0 {
		l.connections = min(l.connections, c.Tracked/4)
		l.sessions = max(1, min(l.sessions, c.Tracked/16))
	}
	// Some of the ports towards one endpoint stay available for the host's own connections, and for the kernel's
	// search, which becomes slow when few are free.
	l.ports = quota{max(1, c.Ports-c.Ports/16), part(c.Ports, share)}
	if c.OnePool {
		l.connections = l.ports.all
	}
	return l
}

// keeps returns the number of files that are reserved for sessions, however many connections there are.
func (l limits) keeps() int { return min(l.files/32, l.sessions) }

// tcp returns the limits of connections, given the other users of descriptors.
func (l limits) tcp(sessions, listening int) tier {
	all := max(1, min(l.connections, (l.files-listening-max(sessions, l.keeps()))/2))
	return l.tier(all, all-all/8)
}

// udp returns the limits of sessions.
func (l limits) udp(connections, listening int) tier {
	all := max(1, min(l.sessions, max(l.keeps(), l.files-listening-2*connections)))
	return l.tier(all, min(maxSessions, max(1, all/2)))
}

func (l limits) tier(all, front int) tier {
	early := min(front, max(leastEarly, front/4))
	return tier{all, part(all, l.share), front, part(front, l.share), quota{early, part(early, l.share)}}
}

// verdict is the decision about a new member in one pool.
type verdict uint8

const (
	admitted  verdict = iota
	overShare         // the client has its share
	full              // the pool is full, and no other client has clearly more
	takes             // the pool is full: the client with the most gives up one
)

// usage is the use of a pool, from the view of one client.
type usage struct{ all, own, most int }

// judge decides about a new member in a pool. Two clients with nearly equal use do not evict each other in turn.
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

// crowd is the use of everything in a protocol when it is full, from the view of a client at a front.
type crowd struct {
	all, clients int   // members, and distinct clients including the new one
	client       usage // over all fronts; zero if clients are not counted over all fronts
	fronts       usage // own: of the front
	pair         usage // within the front
}

// giver says who makes room.
type giver uint8

const (
	noOne     giver = iota
	byClient        // the client with the most
	byFront         // the front with the most, and there the client with the most
	sameFront       // the client with the most at the same front
)

// whoGives decides who makes room when everything is full. A client that dominates is first, whatever fronts it uses.
// Many clients of one front, or forged addresses, each use little: then the front with the most gives. A client below
// its fair share is never refused while another one is above.
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
