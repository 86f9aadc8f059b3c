package cgroup

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	systemdbus "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"github.com/winkube/winkube/pkg/daemon/bustest"
)

const managerName, managerPath = "org.freedesktop.systemd1", dbus.ObjectPath("/org/freedesktop/systemd1")

// remote simulates the part of systemd's manager that slices need, on a bus. Methods and error names are those of
// org.freedesktop.systemd1(5).
type remote struct {
	conn *dbus.Conn

	mu     sync.Mutex
	jobs   int
	loaded map[string]map[string]any
}

type wireProperty struct {
	Name  string
	Value dbus.Variant
}

type wireUnit struct {
	Name       string
	Properties []wireProperty
}

func (r *remote) job(unit, result string) dbus.ObjectPath {
	r.jobs++
	id := uint32(r.jobs)
	path := dbus.ObjectPath("/org/freedesktop/systemd1/job/" + strconv.Itoa(r.jobs))
	time.AfterFunc(20*time.Millisecond, func() { // after the reply, as systemd does
		_ = r.conn.Emit(managerPath, managerName+".Manager.JobRemoved", id, path, unit, result)
	})
	return path
}

func (r *remote) StartTransientUnit(unit, _ string, list []wireProperty, _ []wireUnit) (dbus.ObjectPath, *dbus.Error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.loaded[unit] != nil {
		return "", dbus.NewError(managerName+".UnitExists", []any{"Unit " + unit + " was already loaded or has a fragment file."})
	}
	r.loaded[unit] = map[string]any{}
	r.write(unit, list)
	if strings.HasPrefix(unit, "bad") {
		return r.job(unit, "failed"), nil
	}
	return r.job(unit, "done"), nil
}

func (r *remote) SetUnitProperties(unit string, runtime bool, list []wireProperty) *dbus.Error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.loaded[unit] == nil {
		return dbus.NewError(managerName+".NoSuchUnit", []any{"Unit " + unit + " not loaded."})
	}
	if !runtime {
		return dbus.NewError("org.freedesktop.DBus.Error.AccessDenied", []any{"the test wants nothing on disk"})
	}
	r.write(unit, list)
	return nil
}

func (r *remote) StopUnit(unit, _ string) (dbus.ObjectPath, *dbus.Error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.loaded[unit] == nil {
		return "", dbus.NewError(managerName+".NoSuchUnit", []any{"Unit " + unit + " not loaded."})
	}
	delete(r.loaded, unit)
	return r.job(unit, "done"), nil
}

func (r *remote) write(unit string, list []wireProperty) {
	for _, p := range list {
		r.loaded[unit][p.Name] = p.Value.Value()
	}
}

// of returns a unit's properties, nil if it is not loaded.
func (r *remote) of(unit string) map[string]any {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.loaded[unit])
}

// TestSystemdBus: slices over a real message bus, with errors distinguished by name, and after the bus breaks.
func TestSystemdBus(t *testing.T) {
	address := bustest.Start(t)
	serve := func() *remote {
		conn, err := dbus.Connect(address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		r := &remote{conn: conn, loaded: map[string]map[string]any{}}
		if err := conn.Export(r, managerPath, managerName+".Manager"); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.RequestName(managerName, dbus.NameFlagDoNotQueue); err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := serve()
	var dialled []*dbus.Conn
	b := &bus{dial: func(context.Context) (*systemdbus.Conn, error) {
		return systemdbus.NewConnection(func() (*dbus.Conn, error) {
			conn, err := dbus.Connect(address)
			dialled = append(dialled, conn)
			return conn, err
		})
	}}
	t.Cleanup(func() { b.conn.Close() })
	s := &systemd{units: b}
	ctx, unit := t.Context(), "agents-kubepods.slice"
	want := func(name string, value any) {
		t.Helper()
		if got := r.of(unit)[name]; got != value {
			t.Errorf("%s is %v, want %v", name, got, value)
		}
	}

	if err := s.set(ctx, unit, false, Limits{Memory: 1 << 20, Shares: 1024}, true); err != nil {
		t.Fatal(err)
	}
	want("MemoryMax", uint64(1<<20))
	want("CPUWeight", uint64(100))
	want("MemoryAccounting", true)
	want("TasksMax", none)
	if err := s.set(ctx, unit, false, Limits{Memory: 1 << 21}, true); err != nil { // loaded, but without a cgroup
		t.Fatal(err)
	}
	want("MemoryMax", uint64(1<<21))

	for _, conn := range dialled {
		conn.Close()
	}
	if err := s.set(ctx, unit, true, Limits{Pids: 7}, true); err != nil {
		t.Fatal("after the connection broke:", err)
	}
	want("TasksMax", uint64(7))

	if err := b.start(ctx, "bad.slice", nil); err == nil || !strings.Contains(err.Error(), `"failed"`) {
		t.Errorf("a job that failed: %v", err)
	}
	if err := b.change(ctx, "none.slice", nil); !errors.Is(err, errNoUnit) {
		t.Errorf("a unit that is not there: %v", err)
	}
	for range 2 { // the second time it is already gone
		if err := s.stop(ctx, unit); err != nil {
			t.Fatal(err)
		}
	}
	if r.of(unit) != nil {
		t.Error("the slice is still there")
	}
}

// TestSystemdAbsent: without systemd, the error says that systemd cannot be reached.
func TestSystemdAbsent(t *testing.T) {
	b := &bus{dial: func(context.Context) (*systemdbus.Conn, error) {
		return systemdbus.NewConnection(func() (*dbus.Conn, error) {
			return dbus.Connect("unix:path=" + filepath.Join(t.TempDir(), "none"))
		})
	}}
	err := (&systemd{units: b}).set(t.Context(), "agents.slice", false, Limits{}, false)
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "cannot start the slice agents.slice: cannot connect to systemd") {
		t.Error(err)
	}
}
