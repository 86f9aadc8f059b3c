package podtest

import "errors"

// Forget makes the engine stop during the next start of "sandbox" or of the named container: the process runs, but the restarted engine
// believes that it never started.
func (e *Engine) Forget(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.forgets = what
}

// forget turns a container into an orphan; the lock is held.
func (e *Engine) forget(id string) error {
	e.forgets = ""
	e.orphans[id] = true
	e.Log.Printf("engine: stops while it starts %s", id)
	return errors.New("error during connect: EOF")
}
