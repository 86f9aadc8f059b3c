package cgroup

import (
	"errors"
	"fmt"
	"path"

	"github.com/winkube/winkube/pkg/wake"
)

// Alarm tells when memory in use has grown by a given amount: of all processes, and of all pods together. With version 1 of cgroups the
// kernel watches the amounts (memory thresholds, cgroup-v1/memory.rst); version 2 has no such thing, and there a token comes when processes
// have to wait for memory (pressure stall information, accounting/psi.rst).
type Alarm struct {
	reader *Reader
	pods   func() Place // "": there is none
	tokens wake.Signal
	stops  []func() // of what is armed; of Arm alone
}

// NewAlarm makes an Alarm that is not armed. pods is the place of all pods' cgroup, "" while there is none.
func NewAlarm(proc string, pods func() Place) (*Alarm, error) {
	reader, err := NewReader(proc)
	if err != nil {
		return nil, err
	}
	return &Alarm{reader: reader, pods: pods, tokens: wake.New()}, nil
}

// C has a token when memory may have come to what Arm was given.
func (a *Alarm) C() <-chan struct{} { return a.tokens }

// Arm asks for a token when all processes use node bytes more than now, or all pods together pods bytes more; 0 or less: not asked for. It
// takes the place of what was asked for before. It belongs to one goroutine.
func (a *Alarm) Arm(node, pods int64) error {
	for _, stop := range a.stops {
		stop()
	}
	a.stops = nil
	return errors.Join(a.arm(top, node), a.arm(a.pods(), pods))
}

// top is where a process at the top of the hierarchies is.
const top Place = "1:memory:/\n0::/\n"

// stall asks for a token when some process has waited for memory for 300 ms of two seconds, the shortest span that takes no privilege.
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
		return fmt.Errorf("cannot have the kernel watch the memory of cgroup %s: %w", dir, err)
	}
	a.stops = append(a.stops, stop)
	return nil
}

func (a *Alarm) ring() {
	a.tokens.Send()
}
