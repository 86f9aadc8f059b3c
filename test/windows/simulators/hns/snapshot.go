package hns

import (
	"encoding/json"
	"slices"
)

// Snapshot is a copy of HNS's objects, in creation order.
type Snapshot struct {
	Networks      []Network
	Endpoints     []AttachedEndpoint
	LoadBalancers []LoadBalancer
}

// AttachedEndpoint is an endpoint with the containers it is attached to, and "host".
type AttachedEndpoint struct {
	Endpoint
	Attached []string
}

// Snapshot returns a copy of the current state.
func (h *HNS) Snapshot() (s Snapshot) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range h.networks {
		s.Networks = append(s.Networks, clone(*n))
	}
	for _, e := range h.endpoints {
		s.Endpoints = append(s.Endpoints, AttachedEndpoint{clone(*e), slices.Clone(e.attached)})
	}
	for _, l := range h.loadBalancers {
		s.LoadBalancers = append(s.LoadBalancers, clone(*l))
	}
	return s
}

// clone copies an object's document.
func clone[T any](object T) (out T) {
	text, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		panic(err) // it was read from JSON
	}
	return out
}

// Reserving returns the number of load balancers without direct server return. Each reserves a block of 64 dynamic ports
// (kubernetes/website#17930).
func (h *HNS) Reserving() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.loadBalancers {
		if l.Flags&dsr == 0 {
			n++
		}
	}
	return n
}
