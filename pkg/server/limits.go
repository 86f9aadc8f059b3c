package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// The most that is under way at a time. Whoever comes on top of it is sent away with 429 and may come again in a second; health is always told.
const (
	maxRequests  = 400         // that are answered in one piece, as many as the API server takes itself
	maxStreams   = 1000        // exec, attach, port-forward, and logs, which may be followed: each holds a connection to the engine
	maxRuns      = 16          // of /run, each of which keeps runOutput in memory
	maxBody      = 1 << 20     // bytes of a request that is no stream; the commands that are sent to us take some hundred
	maxH2Streams = 250         // HTTP/2: requests at a time on one connection
	takeTimeout  = time.Minute // for a client to take what was written of an answer, logs excepted
)

// errBusy says that too much of something is under way.
var errBusy = errors.New("too many requests are in progress")

// bound admits as many at a time as it has room for, and three quarters of them for one user: the rest is for the others.
type bound struct {
	all, each int

	mu    sync.Mutex
	inAll int
	in    map[string]int // by user
}

func newBound(all int) *bound { return &bound{all: all, each: (3*all + 3) / 4, in: map[string]int{}} }

// enter does not wait. Who was let in leaves.
func (b *bound) enter(user string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.inAll >= b.all || b.in[user] >= b.each {
		return false
	}
	b.inAll++
	b.in[user]++
	return true
}

func (b *bound) leave(user string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inAll--
	if b.in[user]--; b.in[user] == 0 {
		delete(b.in, user)
	}
}

type userKey struct{}

// by is the request with who sent it.
func by(r *http.Request, who *identity) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), userKey{}, who.Name))
}

// boundFor is what a path counts against; nil: nothing.
func (s *Server) boundFor(path string) *bound {
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch first {
	case "healthz":
		return nil
	case "exec", "attach", "portForward", "containerLogs":
		return s.streamBound
	case "run":
		return s.runBound
	}
	return s.requestBound
}

// limit lets a request through to next while there is room for it, and as long as its client sends and reads in time.
func (s *Server) limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		room := s.boundFor(r.URL.Path)
		if room != nil {
			user, _ := r.Context().Value(userKey{}).(string)
			if !room.enter(user) {
				busy(w)
				return
			}
			defer room.leave(user)
		}
		if room == s.streamBound {
			next.ServeHTTP(w, r)
			return
		}
		if r.ContentLength > maxBody {
			plain(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has %d bytes, want at most %d\n", r.ContentLength, maxBody))
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		out := &timedWriter{w, http.NewResponseController(w), s.config.takeTimeout}
		next.ServeHTTP(out, r)
		out.begin() // of what net/http has kept back
	})
}

func busy(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	plain(w, http.StatusTooManyRequests, "Too many requests are under way, try again later\n")
}

// timedWriter gives up a client that does not take what is written in time. How long the answer takes to come about does not count.
type timedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
}

func (t *timedWriter) begin() { _ = t.control.SetWriteDeadline(time.Now().Add(t.timeout)) } // the machine's clock, as net.Conn wants

func (t *timedWriter) Write(p []byte) (int, error) {
	t.begin()
	return t.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (t *timedWriter) Unwrap() http.ResponseWriter { return t.ResponseWriter }
