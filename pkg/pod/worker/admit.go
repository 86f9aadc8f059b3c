package worker

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
)

// admit asks whether a pod may start. wait means that the pod waits, until others have ended or until the Admitter has the answer to its
// question. Other pods do not wait.
func (m *Manager) admit(d pod.Desired) (no *pod.Rejection, wait bool) {
	uid := d.Pod.UID
	if m.asking[uid] {
		m.waiting[uid] = d
		return nil, true
	}
	no = m.parts.Admitter.Admit(d.Pod)
	switch {
	case no == nil:
		return nil, false
	case no.Preemption != nil:
		m.waiting[uid] = d
		m.preempt(d.Pod, no.Preemption.Victims)
	case no.Ask != nil:
		m.waiting[uid], m.asking[uid] = d, true
		m.crew.do(m.ctx, func(ctx context.Context) error {
			(*no.Ask)(ctx)
			return nil
		}, func(error) { m.inbox.put(func() { m.asked(uid) }) })
	default:
		return no, false
	}
	return no, true
}

// asked admits a pod again after the Admitter's question is answered.
func (m *Manager) asked(uid types.UID) {
	delete(m.asking, uid)
	d, waits := m.waiting[uid]
	switch {
	case m.ctx.Err() != nil:
	case !waits && m.worker(uid) == nil: // it was removed meanwhile
		m.parts.Admitter.Release(uid)
	case waits && m.worker(uid) == nil && !m.predecessor(d.Pod):
		delete(m.waiting, uid)
		m.want(d, false)
	}
}
