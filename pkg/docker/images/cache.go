package images

import (
	"sync"

	"github.com/winkube/winkube/pkg/pod"
)

// cache holds the list of images and looked-up images while the stream of image events is up.
type cache struct {
	mu        sync.Mutex
	list      List
	fresh     bool                 // list is valid
	named     map[string]pod.Image // by full name
	following bool
	changes   uint64 // number of changes: an answer requested before the last one may be outdated
}

// get returns the list if it is valid. Pass mark to put.
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

// look returns the image of that full name if it is cached. Pass mark to found.
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

// keptImages is the maximum number of images cached by name.
const keptImages = 200

// change records that the images may have changed.
func (c *cache) change() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	c.list, c.fresh, c.named = List{}, false, nil
}

// follow records that the stream has connected or disconnected.
func (c *cache) follow(up bool) {
	c.change()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.following = up
}
