package containers

import (
	"maps"
	"slices"
	"sync"

	"github.com/docker/docker/api/types/container"
	"k8s.io/apimachinery/pkg/types"
)

// cache keeps which containers there are and the result of their last inspection, so that observing a pod inspects only what has changed.
// An exited container does not change any more; a running one is kept only while the event stream is up, which would report its end.
// What our own calls do to a container is noted when they return, before its event comes.
type cache struct {
	mu      sync.Mutex
	entries map[string]*cached
	pods    map[types.UID]map[string]*cached
	streams int    // that are up
	changes uint64 // counts what happened to any container
	reset   uint64 // changes when the stream last came or went
	whole   bool   // all of our containers are in entries: they were listed while the stream was up
}

// cached is one container. What was asked for before its version is older than something that happened to it.
type cached struct {
	id      string
	owner   types.UID
	added   uint64
	version uint64
	state   string // as a list says it; "": seen does not hold
	seen    seen
	// start is how far a start by this agent has come.
	start startState
}

// startState is what is known of a start that this agent has requested, and that has an event.
type startState uint8

const (
	notAsked  startState = iota // or over, with its event
	asked                       // neither its end nor its event has come
	toldEarly                   // its event has come, its end not
	toldLate                    // its end has come, its event not
)

func newCache() *cache {
	c := &cache{}
	c.forget()
	return c
}

// forget wants c.mu held, or c not shared yet.
func (c *cache) forget() {
	c.entries, c.pods = map[string]*cached{}, map[types.UID]map[string]*cached{}
}

// see notes that a container of the pod owner exists.
func (c *cache) see(owner types.UID, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entry(owner, id)
}

// entry wants c.mu held.
func (c *cache) entry(owner types.UID, id string) *cached {
	e := c.entries[id]
	if e == nil {
		c.changes++
		e = &cached{id: id, owner: owner, added: c.changes, version: c.changes}
		c.entries[id] = e
		if c.pods[owner] == nil {
			c.pods[owner] = map[string]*cached{}
		}
		c.pods[owner][id] = e
	}
	return e
}

// of lists a pod's containers if it is known which there are. Of each it tells the state in which it was seen.
func (c *cache) of(owner types.UID) (list []container.Summary, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.whole {
		return nil, false
	}
	for _, id := range slices.Sorted(maps.Keys(c.pods[owner])) {
		list = append(list, container.Summary{ID: id, State: c.entries[id].state})
	}
	return list, true
}

// get returns what is known of a container while it is in state. version goes to put.
func (c *cache) get(owner types.UID, id, state string) (s seen, version uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entry(owner, id)
	return e.seen, e.version, state != "" && e.state == state
}

// put keeps what inspect said. settled: it cannot change without an event that names it as started.
func (c *cache) put(id, state string, s seen, version uint64, settled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[id]; e != nil && e.version == version && (settled || c.streams > 0) {
		e.state, e.seen = state, s
	}
}

// drop has a container inspected again: something was done to it, or it had an event.
func (c *cache) drop(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[id]; e != nil {
		c.changes++
		e.version, e.state, e.seen, e.start = c.changes, "", seen{}, notAsked
	}
}

// rewired notes that a container was taken off a network or put on one (on). It returns the pod if that is news: not for a container that
// does not run, nor for the network that a start gives.
func (c *cache) rewired(id string, on bool) (owner types.UID, news bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[id]
	if e == nil || e.start != notAsked || e.state != "" && e.state != string(container.StateRunning) {
		return "", false
	}
	if s := e.seen.sandbox; on && s != nil && len(s.Addresses) > 0 {
		return "", false
	}
	c.changes++
	e.version, e.state, e.seen = c.changes, "", seen{}
	return e.owner, true
}

// made notes a container that this agent has just created; a start by another program has an event.
func (c *cache) made(owner types.UID, id string, s seen) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entry(owner, id)
	e.state, e.seen = string(container.StateCreated), s
}

// starting notes that this agent requests the start of a container.
func (c *cache) starting(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[id]; e != nil {
		e.start = asked
	}
}

// started notes that the start has succeeded. What was seen of the container as it runs stays.
func (c *cache) started(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[id]
	if e == nil {
		return
	}
	if e.start == toldEarly {
		e.start = notAsked
	} else {
		e.start = toldLate
	}
	c.renew(e)
}

// toldStarted notes the event of a start. It is no news after a start that this agent knows to have succeeded, and an inspection under way
// need not be repeated. Nor is it news of a container that was seen to run: the end of an earlier run has another event.
func (c *cache) toldStarted(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[id]
	if e == nil {
		return
	}
	switch e.start {
	case toldLate:
		e.start = notAsked
		return
	case asked:
		e.start = toldEarly
	}
	c.renew(e)
}

// renew has a container that started inspected again, unless it was seen to run. It wants c.mu held.
func (c *cache) renew(e *cached) {
	if e.state != string(container.StateRunning) {
		c.changes++
		e.version, e.state, e.seen = c.changes, "", seen{}
	}
}

// gone forgets a container that no longer exists.
func (c *cache) gone(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(id)
}

// remove wants c.mu held.
func (c *cache) remove(id string) {
	e := c.entries[id]
	if e == nil {
		return
	}
	delete(c.entries, id)
	delete(c.pods[e.owner], id)
	if len(c.pods[e.owner]) == 0 {
		delete(c.pods, e.owner)
	}
}

// stream notes that a stream of events has come up (1) or gone (-1). Both ways everything is forgotten: what happened in the gap is
// unknown.
func (c *cache) stream(change int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	c.streams += change
	c.reset, c.whole = c.changes, false
	c.forget()
}

// mark goes to listed.
func (c *cache) mark() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changes
}

// listed notes which containers there are, by a list that was requested at mark. What has come since stays.
func (c *cache) listed(exists map[string]bool, mark uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, e := range c.entries {
		if !exists[id] && e.added <= mark {
			c.remove(id)
		}
	}
	c.whole = c.streams > 0 && mark >= c.reset
}
