package sim

import (
	"net"
	"sync"
)

// replies are the last answers, by the names of their calls: a shim that lost one asks again, and nothing is done twice.
type replies struct {
	mu    sync.Mutex
	named map[string]*reply
	order []string // oldest first
}

// reply is one answer, whole when done is closed.
type reply struct {
	text []byte
	done chan struct{}
}

// kept is how many are remembered: a shim asks again immediately.
const kept = 256

// of returns the reply to a call; first says that the caller is to give it.
func (r *replies) of(call string) (one *reply, first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if one = r.named[call]; one != nil {
		return one, false
	}
	if r.named == nil {
		r.named = map[string]*reply{}
	}
	if len(r.order) == kept {
		delete(r.named, r.order[0])
		r.order = r.order[1:]
	}
	one = &reply{done: make(chan struct{})}
	r.named[call], r.order = one, append(r.order, call)
	return one, true
}

// recorded is a connection of which the answer is remembered.
type recorded struct {
	net.Conn
	reply *reply
}

func (c *recorded) Write(p []byte) (int, error) {
	c.reply.text = append(c.reply.text, p...)
	return c.Conn.Write(p)
}
