package docker

import "sync"

// cache keeps what inspect said of containers, so that observing a pod costs one list. An exited container does not change any more;
// a running one is kept only while the event stream is up, which would tell of its end.
type cache struct {
	mu      sync.Mutex
	entries map[string]cached
	streams int    // that are up
	changes uint64 // events so far: an answer that was asked for before an event may be older than it
}

type cached struct {
	state string // as the list says it
	seen  seen
}

func (c *cache) init() { c.entries = map[string]cached{} }

// get returns what is known of id while it is in state. mark goes to put.
func (c *cache) get(id, state string) (s seen, mark uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	entry, ok := c.entries[id]
	return entry.seen, c.changes, ok && entry.state == state
}

// put keeps what inspect said. settled: it cannot change without an event that names it as started.
func (c *cache) put(id, state string, s seen, mark uint64, settled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if mark == c.changes && (settled || c.streams > 0) {
		c.entries[id] = cached{state: state, seen: s}
	}
}

// drop forgets a container of which an event told.
func (c *cache) drop(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	delete(c.entries, id)
}

// stream says that a stream of events has come up (1) or gone (-1). Both ways everything is forgotten: what happened in the gap is
// unknown.
func (c *cache) stream(change int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	c.streams += change
	clear(c.entries)
}

// retain forgets all containers but those that exist.
func (c *cache) retain(exists map[string]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id := range c.entries {
		if !exists[id] {
			delete(c.entries, id)
		}
	}
}

// imageCache keeps the list of images while the stream of their events is up.
type imageCache struct {
	mu        sync.Mutex
	list      ImageList
	fresh     bool // list holds
	following bool
	changes   uint64 // as for cache
}

// get returns the list if it holds. mark goes to put.
func (c *imageCache) get() (list ImageList, mark uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.list, c.changes, c.fresh
}

func (c *imageCache) put(list ImageList, mark uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.following && mark == c.changes {
		c.list, c.fresh = list, true
	}
}

// change says that the images may have changed.
func (c *imageCache) change() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	c.list, c.fresh = ImageList{}, false
}

// follow says that the stream has come up or gone.
func (c *imageCache) follow(up bool) {
	c.change()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.following = up
}
