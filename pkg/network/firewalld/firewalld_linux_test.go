package firewalld

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/winkube/winkube/pkg/daemon/bustest"
)

// fake is firewalld: it has zones of interfaces, which a reload empties.
type fake struct {
	mu    sync.Mutex
	zone  map[string]string
	asked chan string
}

// GetZoneOfInterface is getZoneOfInterface of org.fedoraproject.FirewallD1.zone.
func (f *fake) GetZoneOfInterface(name string) (string, *dbus.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked <- "get " + name
	return f.zone[name], nil
}

// AddInterface is addInterface of the same interface: it refuses what has a zone.
func (f *fake) AddInterface(zone, name string) (string, *dbus.Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked <- "add " + zone + " " + name
	if f.zone[name] != "" {
		return "", dbus.NewError(busName+".Exception", []any{"ZONE_ALREADY_SET: " + name})
	}
	f.zone[name] = zone
	return zone, nil
}

// start puts firewalld on the bus. stop takes it away with its zones.
func (f *fake) start(t *testing.T, address string) (conn *dbus.Conn, stop func()) {
	t.Helper()
	conn, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	names := map[string]string{"GetZoneOfInterface": "getZoneOfInterface", "AddInterface": "addInterface"}
	if err := conn.ExportWithMap(f, names, path, zones); err != nil {
		t.Fatal(err)
	}
	if reply, err := conn.RequestName(busName, dbus.NameFlagDoNotQueue); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		t.Fatal(reply, err)
	}
	return conn, func() { conn.Close() }
}

// wants waits for a call. Questions before it do not count: one that starts while keep connects is asked twice. An addition before it is a fault.
func (f *fake) wants(t *testing.T, want string) {
	t.Helper()
	for {
		select {
		case got := <-f.asked:
			if got == want {
				return
			}
			if strings.HasPrefix(got, "add ") {
				t.Fatalf("called %q, want %q", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("no call %q", want)
		}
	}
}

// TestKeep: the bridge gets its zone when firewalld starts, and again after a reload and a restart. A zone that it has stays.
func TestKeep(t *testing.T) {
	address := bustest.Start(t)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- keep(ctx, address, "winkube0") }()

	f := &fake{zone: map[string]string{}, asked: make(chan string, 10)}
	conn, stop := f.start(t, address)
	f.wants(t, "add trusted winkube0")
	f.mu.Lock()
	delete(f.zone, "winkube0")
	f.mu.Unlock()
	if err := conn.Emit(path, reloaded); err != nil {
		t.Fatal(err)
	}
	f.wants(t, "add trusted winkube0")
	stop()

	again := &fake{zone: map[string]string{"winkube0": "internal"}, asked: make(chan string, 10)}
	conn, _ = again.start(t, address)
	again.wants(t, "get winkube0")
	if err := conn.Emit(path, reloaded); err != nil {
		t.Fatal(err)
	}
	again.wants(t, "get winkube0")
	cancel()
	<-ended
	again.mu.Lock()
	defer again.mu.Unlock()
	if now := again.zone["winkube0"]; now != "internal" {
		t.Errorf("the zone is %q now", now)
	}
	for range len(again.asked) {
		if call := <-again.asked; strings.HasPrefix(call, "add ") {
			t.Errorf("called %q of a bridge that has a zone", call)
		}
	}
}

// TestNone: without firewalld on the bus nothing is said of it.
func TestNone(t *testing.T) {
	if got, err := look(t.Context(), bustest.Start(t), "winkube0", nil); err != nil || got.Runs {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestRefused: what firewalld says of a refusal is in the error.
func TestRefused(t *testing.T) {
	err := described(*dbus.NewError(busName+".Exception", []any{"INVALID_ZONE: trusted"}))
	if err == nil || !strings.Contains(err.Error(), "INVALID_ZONE: trusted") {
		t.Error(err)
	}
}
