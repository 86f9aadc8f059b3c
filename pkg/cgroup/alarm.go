package cgroup

import (
	"errors"
	"fmt"
	"path"

	"github.com/winkube/winkube/pkg/wake"
)

// Alarm reports that memory use has grown by a given amount: of all processes, or of all pods together. With cgroup v1 the kernel watches
// the amounts (memory thresholds, cgroup-v1/memory.rst). Version 2 has no thresholds: there a token arrives when processes must wait for
// memory (pressure stall information, accounting/psi.rst).
type Alarm struct {
	reader *Reader
	pods   func() Place // "": there is none
	tokens wake.Signal
	stops  []func() // stop functions of what is armed; only Arm uses it
}

// NewAlarm returns an Alarm that is not armed. pods returns the place of all pods' cgroup, "" while there is none.
func NewAlarm(proc string, pods func() Place) (*Alarm, error) {
	reader, err := NewReader(proc)
	if err != nil {
		return nil, err
	}
	return &Alarm{reader: reader, pods: pods, tokens: wake.New()}, nil
}

// C has a token when memory use may have reached the amounts of Arm.
func (a *Alarm) C() <-chan struct{} { return a.tokens }

// Arm requests a token when all processes use node bytes more than now, or all pods together use pods bytes more; 0 or less: no request. It
// replaces earlier requests. Only one goroutine may call it.
func (a *Alarm) Arm(node, pods int64) error {
	for _, stop := range a.stops {
		stop()
	}
	a.stops = nil
	return errors.Join(a.arm(top, node), a.arm(a.pods(), pods))
}

// top is the place of a process at the top of the hierarchies.
const top Place = "1:memory:/\n0::/\n"

// stall requests a token when a process has waited for memory for 300 ms within two seconds, the shortest window that needs no privilege.
const stall = "some 300000 2000000"

func (a *Alarm) arm(at Place, amount int64) error {
	if amount <= 0 || at == "" {
		return nil
	}
	dir, v2, err := a.reader.dir(at, "memory")
	if err != nil {
		return err
	}
	var stop func()
	switch {
	case v2 && at == top:
		stop, err = watchPressure(path.Join(a.reader.proc, "pressure/memory"), stall, a.ring)
	case v2:
		stop, err = watchPressure(path.Join(dir, "memory.pressure"), stall, a.ring)
	default:
		var used uint64
		if used, err = number(dir, "memory.usage_in_bytes"); err == nil {
			stop, err = watchUsage(dir, used+uint64(amount), a.ring)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot subscribe to memory notifications of cgroup %s: %w", dir, err)
	}
	a.stops = append(a.stops, stop)
	return nil
}

func (a *Alarm) ring() {
	a.tokens.Send()
}
