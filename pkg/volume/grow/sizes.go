package grow

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
)

// sizes are the sizes on this node of volumes that may grow.
type sizes[K comparable] struct {
	mu sync.Mutex
	of map[K]*nodeSize
}

// nodeSize is the size of a volume while a pod has it.
type nodeSize struct {
	mu    sync.Mutex
	known bool
	bytes resource.Quantity
	lost  resource.Quantity // that the driver could not provide
	idle  resource.Quantity // that was refused because a pod has the volume read-only
}

// get returns the size of a volume that a pod has.
func (s *sizes[K]) get(volume K) *nodeSize {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[K]*nodeSize{}
	}
	if s.of[volume] == nil {
		s.of[volume] = &nodeSize{}
	}
	return s.of[volume]
}

// end forgets the size of a volume that no pod has any more. Holders of it no longer affect later pods.
func (s *sizes[K]) end(volume K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, volume)
}

// here returns the size on this node: that of the claim when it was first read, or that of the last expansion here.
func (s *nodeSize) here(claim resource.Quantity) resource.Quantity {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known {
		s.known, s.bytes = true, claim
	}
	return s.bytes
}

// failed records that the driver could not provide size, and reports whether it could not before. A failure that is not final changes nothing.
func (s *nodeSize) failed(size resource.Quantity, f *Failure) (before bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before = s.lost.Cmp(size) == 0
	if f.Final {
		s.lost = size
	}
	return before
}

// refused records that a read-only volume does not get size, and reports whether that is new.
func (s *nodeSize) refused(size resource.Quantity) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle.Cmp(size) == 0 {
		return false
	}
	s.idle = size
	return true
}

// set records the size on this node.
func (s *nodeSize) set(bytes resource.Quantity) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known, s.bytes = true, bytes
}
