package cgroup

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path"
	"strings"
)

// units are the calls to systemd's manager (org.freedesktop.systemd1(5)). Its methods are safe for concurrent use.
type units interface {
	// start creates a transient unit and returns when it runs. An error wraps errUnitExists if the unit is already loaded.
	start(ctx context.Context, unit string, list []property) error
	// change sets properties of a unit until the next reboot.
	change(ctx context.Context, unit string, list []property) error
	// stop stops a unit without waiting for its end. An error wraps errNoUnit if the unit is not loaded.
	stop(ctx context.Context, unit string) error
}

var (
	errUnitExists = errors.New("the unit exists")
	errNoUnit     = errors.New("there is no such unit")
)

// property is a property of a unit; its value is a bool or a uint64.
type property struct {
	name  string
	value any
}

// systemd creates slices and sets their limits.
type systemd struct{ units units }

const sliceSuffix = ".slice"

// sliceName is the unit name of a cgroup (systemd.slice(5)): its elements joined by dashes. Dashes in elements become underscores.
func sliceName(g Group) string {
	if len(g) == 0 {
		return "-" + sliceSuffix
	}
	parts := make([]string, len(g))
	for i, element := range g {
		parts[i] = strings.ReplaceAll(element, "-", "_")
	}
	return strings.Join(parts, "-") + sliceSuffix
}

// sliceElements is the inverse of sliceName, for a unit or a path of units.
func sliceElements(where string) Group {
	name := strings.TrimSuffix(path.Base(path.Clean("/"+where)), sliceSuffix)
	if name == "/" || name == "-" {
		return nil
	}
	var g Group
	for _, part := range strings.Split(name, "-") {
		if part != "" {
			g = append(g, strings.ReplaceAll(part, "_", "-"))
		}
	}
	return g
}

// none is systemd's "no limit" for all limits.
const none uint64 = math.MaxUint64

// properties converts want to properties of a slice (systemd.resource-control(5)).
func properties(want Limits, v2 bool) []property {
	most := func(v int64) uint64 {
		if v <= 0 {
			return none
		}
		return uint64(v)
	}
	memory, shares, weight := "MemoryLimit", "CPUShares", want.Shares
	if v2 {
		memory, shares, weight = "MemoryMax", "CPUWeight", Weight(want.Shares)
	}
	list := []property{{"CPUAccounting", true}, {"MemoryAccounting", true}, {"TasksAccounting", true}}
	if want.Shares > 0 {
		list = append(list, property{shares, uint64(weight)})
	}
	quota := none
	if want.Quota > 0 && want.Period > 0 {
		quota = uint64(want.Quota) * 1_000_000 / uint64(want.Period)
	}
	list = append(list, property{"CPUQuotaPerSecUSec", quota}, property{memory, most(want.Memory)}, property{"TasksMax", most(want.Pids)})
	if v2 && want.NoSwap {
		list = append(list, property{"MemorySwapMax", uint64(0)})
	}
	return list
}

// set starts a slice with limits, or changes those of an existing one.
func (s *systemd) set(ctx context.Context, unit string, exists bool, want Limits, v2 bool) error {
	list := properties(want, v2)
	if !exists {
		err := s.units.start(ctx, unit, list)
		if err == nil {
			return nil
		}
		if !errors.Is(err, errUnitExists) { // it exists: a unit without processes has no cgroup
			return fmt.Errorf("cannot start the slice %s: %w", unit, err)
		}
	}
	if err := s.units.change(ctx, unit, list); err != nil {
		return fmt.Errorf("cannot set the limits of the slice %s: %w", unit, err)
	}
	return nil
}

// stop removes a slice. A missing slice is not an error.
func (s *systemd) stop(ctx context.Context, unit string) error {
	if err := s.units.stop(ctx, unit); err != nil && !errors.Is(err, errNoUnit) {
		return fmt.Errorf("cannot stop the slice %s: %w", unit, err)
	}
	return nil
}
