package volumetest

import (
	"strings"
	"sync"
)

// Events records Events as "object namespace/name uid kind reason message". The zero value is ready for use.
type Events struct {
	mu  sync.Mutex
	got []string
}

// PodEvent records one of a pod.
func (e *Events) PodEvent(namespace, name, uid, kind, reason, message string) {
	e.add("pod", namespace, name, uid, kind, reason, message)
}

// ClaimEvent records one of a claim.
func (e *Events) ClaimEvent(namespace, name, uid, kind, reason, message string) {
	e.add("claim", namespace, name, uid, kind, reason, message)
}

func (e *Events) add(object, namespace, name, uid string, rest ...string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.got = append(e.got, object+" "+namespace+"/"+name+" "+uid+" "+strings.Join(rest, " "))
}

// Take returns the Events since the last call.
func (e *Events) Take() (got []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	got, e.got = e.got, nil
	return got
}
