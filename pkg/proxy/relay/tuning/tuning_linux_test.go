package tuning

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/winkube/winkube/pkg/proxy/relay/nstest"
)

// notesIn has notes in a directory of the test.
func notesIn(t *testing.T) {
	before := notes
	notes = t.TempDir()
	t.Cleanup(func() { notes = before })
}

// TestPortsRestored: the setting for TIME_WAIT is restored if it is still ours, once, by any proxy that cleans up.
func TestPortsRestored(t *testing.T) {
	nstest.In(t)
	notesIn(t)
	setting := func() string {
		text, err := reusePort.read()
		if err != nil {
			t.Skipf("this kernel has no such setting: %v", err)
		}
		return text
	}
	set := func(value string) {
		if err := os.WriteFile(reusePort.path, []byte(value), 0o644); err != nil {
			t.Skipf("cannot change settings here: %v", err)
		}
	}
	for _, c := range []struct{ before, meanwhile, used, after string }{
		{"2", "", "1", "2"},
		{"2", "0", "1", "0"}, // changed by others since
		{"1", "", "1", "1"},  // changed by others before
		{"0", "", "0", "0"},
	} {
		set(c.before)
		changes, err := reusePorts()
		if err != nil || setting() != c.used || (len(changes) > 0) != (c.before != c.used) {
			t.Errorf("%+v: %v, %v, setting %s", c, changes, err, setting())
		}
		if c.meanwhile != "" {
			set(c.meanwhile)
		}
		for range 2 {
			if err := Restore(); err != nil || setting() != c.after {
				t.Errorf("%+v: cleaned up, the setting is %s, %v", c, setting(), err)
			}
		}
	}
}

// TestEarlierNote: a setting that an earlier version of the proxy has changed is restored.
func TestEarlierNote(t *testing.T) {
	notesIn(t)
	s := setting{"net.ipv4.tcp_tw_reuse", filepath.Join(t.TempDir(), "tcp_tw_reuse")}
	for path, text := range map[string]string{s.path: "1\n", s.note(): "2"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.restore(); err != nil {
		t.Error(err)
	}
	if now, err := s.read(); err != nil || now != "2" {
		t.Errorf("restored, it is %s, %v", now, err)
	}
}

// TestTableRaised: the table of connection tracking grows to what is wanted and never shrinks. The host's size comes back, also after a proxy that was
// killed and one that wanted more.
func TestTableRaised(t *testing.T) {
	notesIn(t)
	table := setting{"net.netfilter.nf_conntrack_max", filepath.Join(t.TempDir(), "nf_conntrack_max")}
	raise := func(entries int, want string) {
		t.Helper()
		before, _ := table.read()
		changes, err := table.raise(entries)
		now, readErr := table.read()
		if err != nil || readErr != nil || now != want || len(changes) > 0 != (before != want) {
			t.Errorf("%d wanted of %s: it is %s, changes %v (%v, %v); want %s", entries, before, now, changes, err, readErr, want)
		}
	}
	restored := func(want string) {
		t.Helper()
		for range 2 {
			if err := table.restore(); err != nil {
				t.Error(err)
			}
		}
		if now, err := table.read(); err != nil || now != want {
			t.Errorf("restored, it is %s, %v; want %s", now, err, want)
		}
	}
	if changes, err := table.raise(100); err != nil || len(changes) > 0 {
		t.Errorf("nothing tracks connections: %v, %v", changes, err)
	}
	set := func(value string) {
		if err := os.WriteFile(table.path, []byte(value+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	set("65536")
	raise(0, "65536")
	raise(1000, "65536")
	raise(131072, "131072")
	raise(131072, "131072") // as after a kill
	raise(262144, "262144")
	restored("65536")
	raise(131072, "131072")
	set("90000") // by others, since
	restored("90000")
}

// TestProcessors: Go's scheduler has one more processor for each loop, and the change is reported.
func TestProcessors(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	if c := addProcessors(3); runtime.GOMAXPROCS(0) != before+3 || c != (Change{"GOMAXPROCS", strconv.Itoa(before), strconv.Itoa(before + 3)}) {
		t.Errorf("%d processors, said %+v", runtime.GOMAXPROCS(0), c)
	}
}
