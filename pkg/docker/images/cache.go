package images

import (
	"sync"

	"github.com/winkube/winkube/pkg/pod"
)

// cache keeps the list of images and those that were looked up while the stream of their events is up.
type cache struct {
	mu        sync.Mutex
	list      List
	fresh     bool                 // list holds
	named     map[string]pod.Image // by full name
	following bool
	changes   uint64 // so far: an answer that was asked for before one may be older than it
}

// get returns the list if it holds. mark goes to put.
func (c *cache) get() (list List, mark uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.list, c.changes, c.fresh
}

func (c *cache) put(list List, mark uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.following && mark == c.changes {
		c.list, c.fresh = list, true
	}
}

// look returns the image of that full name if it was looked up before. mark goes to found.
func (c *cache) look(name string) (img pod.Image, mark uint64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	img, ok = c.named[name]
	return img, c.changes, ok
}

func (c *cache) found(name string, img pod.Image, mark uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.following && mark == c.changes {
		if c.named == nil || len(c.named) >= keptImages {
			c.named = map[string]pod.Image{}
		}
		c.named[name] = img
	}
}

// keptImages is how many images are remembered by name.
const keptImages = 200

// change says that the images may have changed.
func (c *cache) change() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	c.list, c.fresh, c.named = List{}, false, nil
}

// follow says that the stream has come up or gone.
func (c *cache) follow(up bool) {
	c.change()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.following = up
}
