package sim

import (
	"net"
	"sync"
)

// replies caches the latest answers by call name: a shim that loses an answer asks again, and the call is not repeated.
type replies struct {
	mu    sync.Mutex
	named map[string]*reply
	order []string // oldest first
}

// reply is one answer. It is complete when done is closed.
type reply struct {
	text []byte
	done chan struct{}
}

// kept is the number of cached answers. A few suffice: a shim asks again immediately.
const kept = 256

// of returns the reply to a call; first means that the caller must fill it.
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

// recorded is a connection whose answer is recorded.
type recorded struct {
	net.Conn
	reply *reply
}

func (c *recorded) Write(p []byte) (int, error) {
	c.reply.text = append(c.reply.text, p...)
	return c.Conn.Write(p)
}
