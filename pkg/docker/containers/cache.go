package containers

import (
	"maps"
	"slices"
	"sync"

	"github.com/docker/docker/api/types/container"
	"k8s.io/apimachinery/pkg/types"
)

// cache holds the known containers and the result of each one's last inspection, so that observing a pod inspects only changed containers. An exited
// container no longer changes; a running one is cached only while the event stream is up, which would report its end. Our own calls update the cache
// when they return, before the event arrives.
type cache struct {
	mu      sync.Mutex
	entries map[string]*cached
	pods    map[types.UID]map[string]*cached
	streams int    // that are up
	changes uint64 // counts changes to any container
	reset   uint64 // value of changes when a stream last connected or disconnected
	whole   bool   // entries holds all of our containers: they were listed while the stream was up
	left    bool   // containers have gone, or may have, since the last call of lost
}

// cached is one container. The result of a request made before version is outdated.
type cached struct {
	id      string
	owner   types.UID
	added   uint64
	version uint64
	state   string // as in a list; "": seen is not valid
	seen    seen
	// start is the progress of a start by this agent.
	start startState
}

// startState is what is known about a start that this agent requested, which also has an event.
type startState uint8

const (
	notAsked  startState = iota // or finished, event included
	asked                       // neither its result nor its event has arrived
	toldEarly                   // its event has arrived, its result has not
	toldLate                    // its result has arrived, its event has not
)

func newCache() *cache {
	c := &cache{}
	c.forget()
	return c
}

// forget requires that c.mu is held or that c is not shared yet.
func (c *cache) forget() {
	c.entries, c.pods, c.left = map[string]*cached{}, map[types.UID]map[string]*cached{}, true
}

// see records that a container of the pod owner exists.
func (c *cache) see(owner types.UID, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entry(owner, id)
}

// entry requires that c.mu is held.
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

// of lists a pod's containers if the list is complete. It returns the state in which each was last seen.
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

// knows says whether all of ids are known to exist.
func (c *cache) knows(ids []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !slices.ContainsFunc(ids, func(id string) bool { return c.entries[id] == nil })
}

// lost says whether containers have gone, or may have, since it was last called. At first they may have.
func (c *cache) lost() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := c.left
	c.left = false
	return left
}

// get returns the cached result for a container while it is in state. Pass version to put.
func (c *cache) get(owner types.UID, id, state string) (s seen, version uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entry(owner, id)
	return e.seen, e.version, state != "" && e.state == state
}

// put stores the result of an inspection. settled means that it cannot change without a start event for the container.
func (c *cache) put(id, state string, s seen, version uint64, settled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[id]; e != nil && e.version == version && (settled || c.streams > 0) {
		e.state, e.seen = state, s
	}
}

// drop invalidates the entry of a container after a call or an event.
func (c *cache) drop(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[id]; e != nil {
		c.changes++
		e.version, e.state, e.seen, e.start = c.changes, "", seen{}, notAsked
	}
}

// rewired records that a container was connected to a network (on) or disconnected. It returns the pod if it needs observing: not for a stopped
// container, nor for the network that a start connects.
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

// made records a container that this agent has just created. A start by another program has an event.
func (c *cache) made(owner types.UID, id string, s seen) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entry(owner, id)
	e.state, e.seen = string(container.StateCreated), s
}

// starting records that this agent requests the start of a container.
func (c *cache) starting(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[id]; e != nil {
		e.start = asked
	}
}

// started records that the start has succeeded. The cached result stays if the container was already seen running.
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

// toldStarted records the start event. After a start by this agent that is known to have succeeded, the event is not news and an inspection in
// progress need not be repeated. Nor is it news for a container that was seen running: the end of an earlier run has another event.
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

// renew invalidates the entry of a started container, unless it was seen running. It requires that c.mu is held.
func (c *cache) renew(e *cached) {
	if e.state != string(container.StateRunning) {
		c.changes++
		e.version, e.state, e.seen = c.changes, "", seen{}
	}
}

// gone removes a container that no longer exists.
func (c *cache) gone(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(id)
}

// remove requires that c.mu is held.
func (c *cache) remove(id string) {
	e := c.entries[id]
	if e == nil {
		return
	}
	c.left = true
	delete(c.entries, id)
	delete(c.pods[e.owner], id)
	if len(c.pods[e.owner]) == 0 {
		delete(c.pods, e.owner)
	}
}

// stream records that an event stream has connected (1) or disconnected (-1). Both clear the cache: events of the gap are unknown.
func (c *cache) stream(change int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	c.streams += change
	c.reset, c.whole = c.changes, false
	c.forget()
}

// mark returns the value to pass to listed.
func (c *cache) mark() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changes
}

// listed records which containers exist, and whose they are, by a list that was requested at mark. Containers added since stay. From now on of may
// answer, so every container gets its entry here, not when its inspection begins.
func (c *cache) listed(owners map[string]types.UID, mark uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, e := range c.entries {
		if _, exists := owners[id]; !exists && e.added <= mark {
			c.remove(id)
		}
	}
	for id, owner := range owners {
		c.entry(owner, id)
	}
	c.whole = c.streams > 0 && mark >= c.reset
}
