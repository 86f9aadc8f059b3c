package dockertest

import (
	"path"
	"strings"
	"sync"
)

// faults are the injected failures of an engine, and the requests that it received.
type faults struct {
	lock     sync.Mutex
	list     []*fault
	requests []string
}

// fault is one injected failure.
type fault struct {
	method, pattern string
	times           int // remaining; below 0: unlimited
	status          int
	message         string
	release         chan struct{} // ends a hang
}

// Fail makes the next times requests (below 0: all) that match "METHOD /path" fail with status and message. The path has no version and may use * for
// one segment: "POST /containers/*/start".
func (f *faults) Fail(match string, times, status int, message string) {
	method, pattern, _ := strings.Cut(match, " ")
	f.lock.Lock()
	defer f.lock.Unlock()
	f.list = append(f.list, &fault{method: method, pattern: pattern, times: times, status: status, message: message})
}

// Hang makes all requests that match wait until release is called or the client goes away.
func (f *faults) Hang(match string) (release func()) {
	method, pattern, _ := strings.Cut(match, " ")
	hang := &fault{method: method, pattern: pattern, times: -1, release: make(chan struct{})}
	f.lock.Lock()
	defer f.lock.Unlock()
	f.list = append(f.list, hang)
	return sync.OnceFunc(func() {
		f.lock.Lock()
		defer f.lock.Unlock()
		hang.times = 0
		close(hang.release)
	})
}

// Requests lists all requests so far as "METHOD /path", without version and query. Reset forgets them.
func (f *faults) Requests(reset bool) []string {
	f.lock.Lock()
	defer f.lock.Unlock()
	out := f.requests
	if reset {
		f.requests = nil
	}
	return out
}

// requested records a request and returns and counts the first fault that matches it, or nil.
func (f *faults) requested(method, where string) *fault {
	f.lock.Lock()
	defer f.lock.Unlock()
	f.requests = append(f.requests, method+" "+where)
	for _, one := range f.list {
		if ok, _ := path.Match(one.pattern, where); ok && one.method == method && one.times != 0 {
			if one.times > 0 {
				one.times--
			}
			return one
		}
	}
	return nil
}
