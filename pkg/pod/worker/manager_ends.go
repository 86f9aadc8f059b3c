package worker

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
)

// Evict ends a pod. It may be called by any goroutine and does not wait; a pod that is not here, or ends already, is left as it is.
func (m *Manager) Evict(uid types.UID, e pod.Eviction) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if w := m.workers[uid]; w != nil {
		w.inbox.put(func() { w.evict(e) })
	}
}

// Vacated returns what is closed when nothing of a pod runs and its volumes are gone, or at once where there is none. It may be called by any
// goroutine.
func (m *Manager) Vacated(uid types.UID) <-chan struct{} {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if w := m.workers[uid]; w != nil {
		return w.vacated
	}
	none := make(chan struct{})
	close(none)
	return none
}

// Sweep has the engine rid of what pods have left that have ended. It may be called by any goroutine and does not wait.
func (m *Manager) Sweep() {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, w := range m.workers {
		w.inbox.put(w.sweep)
	}
}
