package cgroup

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/winkube/winkube/pkg/command"
)

// systemd makes and sets slices. It is asked over its bus by busctl, which is a part of it.
type systemd struct{ run command.Runner }

const sliceSuffix = ".slice"

// sliceName is the unit of a cgroup (systemd.slice(5)): all its elements with dashes between, so that dashes in them have to go.
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

// sliceElements is sliceName backwards, of a unit or a path of units.
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

// none is systemd's "no limit" of any kind.
const none = "18446744073709551615"

// properties are want as arguments of busctl of type a(sv): their number, and for each name, type and value (systemd.resource-control(5)).
func properties(want Limits, v2 bool) []string {
	var list []string
	n := 0
	add := func(name, kind, value string) {
		n++
		list = append(list, name, kind, value)
	}
	most := func(v int64) string {
		if v <= 0 {
			return none
		}
		return strconv.FormatInt(v, 10)
	}
	memory, shares, weight := "MemoryLimit", "CPUShares", want.Shares
	if v2 {
		memory, shares, weight = "MemoryMax", "CPUWeight", Weight(want.Shares)
	}
	add("CPUAccounting", "b", "true")
	add("MemoryAccounting", "b", "true")
	add("TasksAccounting", "b", "true")
	if want.Shares > 0 {
		add(shares, "t", strconv.FormatInt(weight, 10))
	}
	quota := none
	if want.Quota > 0 && want.Period > 0 {
		quota = strconv.FormatInt(want.Quota*1_000_000/want.Period, 10)
	}
	add("CPUQuotaPerSecUSec", "t", quota)
	add(memory, "t", most(want.Memory))
	add("TasksMax", "t", most(want.Pids))
	return append([]string{strconv.Itoa(n)}, list...)
}

// set starts a slice with limits, or changes those of one that is there.
func (s *systemd) set(ctx context.Context, unit string, exists bool, want Limits, v2 bool) error {
	change := func() error {
		return s.call(ctx, "SetUnitProperties", append([]string{"sba(sv)", unit, "true"}, properties(want, v2)...)...)
	}
	if exists {
		return change()
	}
	args := append([]string{"ssa(sv)a(sa(sv))", unit, "replace"}, properties(want, v2)...)
	err := s.call(ctx, "StartTransientUnit", append(args, "0")...)
	var exit *command.ExitError
	if errors.As(err, &exit) && strings.Contains(exit.Output, "already") { // it is there, with no process in it
		return change()
	}
	return err
}

// stop takes a slice away. One that is not there is no error.
func (s *systemd) stop(ctx context.Context, unit string) error {
	err := s.call(ctx, "StopUnit", "ss", unit, "replace")
	var exit *command.ExitError
	if errors.As(err, &exit) && strings.Contains(exit.Output, "not loaded") {
		return nil
	}
	return err
}

func (s *systemd) call(ctx context.Context, method string, args ...string) error {
	all := []string{"call", "--quiet", "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", method}
	if _, err := s.run.Run(ctx, nil, "busctl", append(all, args...)...); err != nil {
		return fmt.Errorf("cannot have systemd do %s of %s: %w", method, args[1], err)
	}
	return nil
}
