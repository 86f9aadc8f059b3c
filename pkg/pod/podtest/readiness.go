package podtest

import v1 "k8s.io/api/core/v1"

// Readiness returns the values that the pod's condition Ready has had since the last call, each once in a row.
func (a *API) Readiness(name string) []v1.ConditionStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.named(name)
	if p == nil {
		return nil
	}
	list := a.ready[p.UID]
	delete(a.ready, p.UID)
	return list
}

// noteReady records the condition Ready of a status that was written; the lock is held.
func (a *API) noteReady(p *v1.Pod) {
	for _, c := range p.Status.Conditions {
		if list := a.ready[p.UID]; c.Type == v1.PodReady && (len(list) == 0 || list[len(list)-1] != c.Status) {
			a.ready[p.UID] = append(list, c.Status)
		}
	}
}
