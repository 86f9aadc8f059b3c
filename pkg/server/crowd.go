package server

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"sync"
)

// Limits of concurrent connections without an authenticated request.
const (
	maxStrangers    = 1024
	sourceStrangers = 256 // from one source
)

// crowd limits the open connections of strangers, active or not: each uses a file descriptor. If there are too many, it closes the oldest one of the
// source with the most, except connections with a request in authentication, which has separate limits.
type crowd struct {
	limit, perSource int
	closed           func(limit string) // is called for each connection that it closes

	mu      sync.Mutex
	members map[net.Conn]string // and their sources
	sources map[string][]stranger
}

type stranger struct {
	conn net.Conn
	from *visitor
}

func newCrowd(limit, perSource int, closed func(limit string)) *crowd {
	return &crowd{limit: limit, perSource: perSource, closed: closed, members: map[net.Conn]string{}, sources: map[string][]stranger{}}
}

// join counts a new connection (http.Server.ConnContext).
func (c *crowd) join(ctx context.Context, conn net.Conn) context.Context {
	v := &visitor{leave: func() { c.leave(conn) }}
	c.mu.Lock()
	defer c.mu.Unlock()
	source := sourceOf(conn.RemoteAddr().String())
	c.members[conn] = source
	c.sources[source] = append(c.sources[source], stranger{conn, v})
	reached := limitStrangersOfSource
	if len(c.sources[source]) <= c.perSource {
		if len(c.members) <= c.limit {
			return context.WithValue(ctx, visitorKey{}, v)
		}
		reached = limitStrangers
		most := 0
		for other, strangers := range c.sources {
			if len(strangers) > most {
				source, most = other, len(strangers)
			}
		}
	}
	if i := slices.IndexFunc(c.sources[source], func(s stranger) bool { return s.from.asking.Load() == 0 }); i >= 0 {
		victim := c.sources[source][i].conn
		c.drop(victim)
		if secure, ok := victim.(*tls.Conn); ok {
			victim = secure.NetConn() // without a TLS close notification, for which a client could make us wait
		}
		c.closed(reached)
		_ = victim.Close()
	}
	return context.WithValue(ctx, visitorKey{}, v)
}

// changed drops closed connections, and those that streams have taken over (http.Server.ConnState).
func (c *crowd) changed(conn net.Conn, state http.ConnState) {
	if state == http.StateClosed || state == http.StateHijacked {
		c.leave(conn)
	}
}

// leave drops a connection that was authenticated or closed.
func (c *crowd) leave(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop(conn)
}

func (c *crowd) drop(conn net.Conn) {
	source, ok := c.members[conn]
	if !ok {
		return
	}
	delete(c.members, conn)
	rest := slices.DeleteFunc(c.sources[source], func(s stranger) bool { return s.conn == conn })
	if c.sources[source] = rest; len(rest) == 0 {
		delete(c.sources, source)
	}
}

type visitorKey struct{}

// visitorOf returns the connection of a request.
func visitorOf(ctx context.Context) *visitor {
	if v, ok := ctx.Value(visitorKey{}).(*visitor); ok {
		return v
	}
	return &visitor{}
}

// authenticated records who sent a request over the connection.
func (v *visitor) authenticated(who *identity) {
	if who != nil && who.Name != anonymousUser && v.leave != nil && v.admitted.CompareAndSwap(false, true) {
		v.leave()
	}
}
