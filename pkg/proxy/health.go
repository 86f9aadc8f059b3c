package proxy

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

// healthTimeout is how long a change may wait for its Sync before the proxy is unhealthy.
const healthTimeout = 60 * time.Second

// toBeDeletedTaint marks a node that the cluster autoscaler is about to remove: /healthz fails then, so that external
// load balancers stop using it.
const toBeDeletedTaint = "ToBeDeletedByClusterAutoscaler"

// Health knows whether the host keeps up with the cluster. It is safe for concurrent use.
type Health struct {
	clock    clock.PassiveClock
	families []v1.IPFamily
	metrics  *Metrics

	mu       sync.Mutex
	updated  time.Time // time of the last successful Sync
	queued   time.Time // time of the oldest pending change; zero: none
	eligible bool
}

// NewHealth returns the Health of a proxy that has seen no changes and no Node yet: healthy but not eligible.
func NewHealth(c clock.PassiveClock, node NodeInfo, metrics *Metrics) *Health {
	return &Health{clock: c, families: node.families(), metrics: metrics}
}

// families returns the address families that node serves.
func (n NodeInfo) families() []v1.IPFamily {
	switch {
	case n.IPv4 == n.IPv6:
		return []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}
	case n.IPv4:
		return []v1.IPFamily{v1.IPv4Protocol}
	}
	return []v1.IPFamily{v1.IPv6Protocol}
}

// Queued records that a change has arrived.
func (h *Health) Queued() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.queued.IsZero() {
		h.queued = h.clock.Now()
	}
}

// Updated records that every change queued before has reached the host.
func (h *Health) Updated() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.queued = time.Time{}
	h.updated = h.clock.Now()
}

// SetNode sets this node's current object; nil: it is gone.
func (h *Health) SetNode(node *v1.Node) {
	eligible := node != nil && node.DeletionTimestamp.IsZero()
	if eligible {
		for _, taint := range node.Spec.Taints {
			eligible = eligible && taint.Key != toBeDeletedTaint
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.eligible = eligible
}

// Healthy reports whether no change has waited longer than a minute.
func (h *Health) Healthy() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.queued.IsZero() || h.clock.Since(h.queued) < healthTimeout
}

// healthAnswer has upstream's JSON format.
type healthAnswer struct {
	LastUpdated  time.Time                     `json:"lastUpdated"`
	CurrentTime  time.Time                     `json:"currentTime"`
	NodeEligible *bool                         `json:"nodeEligible,omitempty"`
	Healthy      bool                          `json:"healthy"`
	Status       map[v1.IPFamily]*familyHealth `json:"status,omitempty"`
}

type familyHealth struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// Handler serves /healthz, which also fails when this node is about to be removed, and /livez, which does not
// (KEP-3836).
func (h *Health) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { h.answer(w, true) })
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { h.answer(w, false) })
	return mux
}

func (h *Health) answer(w http.ResponseWriter, askNode bool) {
	healthy := h.Healthy()
	h.mu.Lock()
	eligible, updated := h.eligible, h.updated
	h.mu.Unlock()
	out := healthAnswer{LastUpdated: updated, CurrentTime: h.clock.Now(), Healthy: healthy}
	if !updated.IsZero() {
		out.Status = map[v1.IPFamily]*familyHealth{}
		for _, family := range h.families {
			out.Status[family] = &familyHealth{LastUpdated: updated, Healthy: healthy}
		}
	}
	ok, count := healthy, h.metrics.livez
	if askNode {
		out.NodeEligible = &eligible
		ok, count = healthy && eligible, h.metrics.healthz
	}
	code, text := http.StatusServiceUnavailable, "503"
	if ok {
		code, text = http.StatusOK, "200"
		out.LastUpdated = out.CurrentTime // readers of older releases expect this while the proxy is healthy
	}
	count.WithLabelValues(text).Inc()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(out) // the client may be gone
}
