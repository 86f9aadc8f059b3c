package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Limits of concurrent work. Excess requests get 429 and may retry after a second; /healthz is exempt.
const (
	maxRequests  = 400         // ordinary requests, as many as the API server allows
	maxStreams   = 1000        // exec, attach, port-forward, and logs, which can be followed: each holds a connection to the engine
	maxRuns      = 16          // of /run; each buffers up to runOutput
	maxBody      = 1 << 20     // bytes of a request other than a stream; commands sent to us have some hundred
	maxH2Streams = 250         // HTTP/2: concurrent requests on one connection
	takeTimeout  = time.Minute // for a client to receive written data of an answer, except logs
)

// bound limits concurrent requests in total, and to three quarters of that for one user, so that the others get a share.
type bound struct {
	limit     string // its name in the metrics
	all, each int

	mu    sync.Mutex
	inAll int
	in    map[string]int // by user
}

func newBound(limit string, all int) *bound {
	return &bound{limit: limit, all: all, each: (3*all + 3) / 4, in: map[string]int{}}
}

// enter does not block. After true, call leave.
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

// by adds the sender to the request.
func by(r *http.Request, who *identity) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), userKey{}, who.Name))
}

// boundFor is the limit that applies to a path; nil: none.
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

// limit passes a request to next if the limits allow it, and as long as its client sends and reads in time.
func (s *Server) limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		room := s.boundFor(r.URL.Path)
		if room != nil {
			user, _ := r.Context().Value(userKey{}).(string)
			if !room.enter(user) {
				s.refuse(w, &fullError{room.limit})
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
		out.begin() // for data that net/http has buffered
	})
}

// timedWriter disconnects a client that does not receive written data in time. The time to produce the answer does not count.
type timedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
}

func (t *timedWriter) begin() { _ = t.control.SetWriteDeadline(time.Now().Add(t.timeout)) } // net.Conn uses the machine's clock

func (t *timedWriter) Write(p []byte) (int, error) {
	t.begin()
	return t.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (t *timedWriter) Unwrap() http.ResponseWriter { return t.ResponseWriter }
