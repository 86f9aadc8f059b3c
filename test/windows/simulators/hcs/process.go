package hcs

import (
	"context"
	"slices"
)

// process is a simulated process in a system.
type process struct {
	number uint32
	system string
	does   Program
	ended  chan struct{} // closed when it has ended by itself
	code   uint32        // valid once ended is closed
	gone   chan struct{} // closed when its system is gone
}

// run starts the process with the number lastProcess.
func (h *HCS) run(system, commandLine string) {
	p := &process{number: h.lastProcess, system: system, ended: make(chan struct{}), gone: make(chan struct{})}
	if h.Program != nil {
		p.does = h.Program(commandLine)
	}
	if p.does.Ends {
		p.code = p.does.Code
		close(p.ended)
	}
	h.processes[p.number] = p
}

// forget removes a system and its processes.
func (h *HCS) forget(system string) {
	delete(h.systems, system)
	for number, p := range h.processes {
		if p.system == system {
			close(p.gone)
			delete(h.processes, number)
		}
	}
}

// Output returns what a process prints when it starts.
func (h *HCS) Output(number uint32) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.processes[number]; p != nil {
		return p.does.Output
	}
	return ""
}

// Wait waits until a process ends by itself, and returns its exit code. ok is false if there is no such process, its system is ended first, or ctx.
func (h *HCS) Wait(ctx context.Context, number uint32) (code uint32, ok bool) {
	h.mu.Lock()
	p := h.processes[number]
	h.mu.Unlock()
	if p == nil {
		return 0, false
	}
	select {
	case <-p.ended:
		return p.code, true
	case <-p.gone:
	case <-ctx.Done():
	}
	return 0, false
}

// Exit has the oldest process of a system, which is its container's, end by itself with a code. It reports whether there was one that had not.
func (h *HCS) Exit(system string, code uint32) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	var oldest *process
	for _, p := range h.processes {
		if p.system == system && (oldest == nil || p.number < oldest.number) {
			oldest = p
		}
	}
	if oldest == nil {
		return false
	}
	select {
	case <-oldest.ended:
		return false
	default:
		oldest.code = code
		close(oldest.ended)
		return true
	}
}

// Attached records that a running system was attached to an endpoint after its start, or detached again.
func (h *HCS) Attached(system, endpoint string, attached bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.systems[system]
	if s == nil {
		return
	}
	s.attached = slices.DeleteFunc(s.attached, func(one string) bool { return one == endpoint })
	if attached {
		s.attached = append(s.attached, endpoint)
	}
}

// Systems returns the IDs of all compute systems, sorted.
func (h *HCS) Systems() (ids []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range h.systems {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
