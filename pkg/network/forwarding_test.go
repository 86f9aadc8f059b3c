package network

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestForwardingFile: what the kubelet switched on is switched off, by interface and family, and nothing else; after an error it is tried again.
func TestForwardingFile(t *testing.T) {
	f := ForwardingFileIn(filepath.Join(t.TempDir(), "kubelet"))
	ethernet, six := Forwarding{Interface: "Ethernet"}, Forwarding{Interface: "Ethernet", IPv6: true}
	gone := Forwarding{Interface: "vEthernet (gone)"}
	for _, one := range []Forwarding{ethernet, six, ethernet, gone} {
		if err := f.Add(one); err != nil {
			t.Fatal(err)
		}
	}
	var asked []Forwarding
	off := func(one Forwarding) (bool, error) { asked = append(asked, one); return one != gone, nil }
	if _, err := f.Undo(func(Forwarding) (bool, error) { return false, errors.New("access is denied") }); err == nil {
		t.Error("an error is lost")
	}
	if changed, err := f.Undo(off); err != nil || !slices.Equal(changed, []string{"Ethernet"}) || !slices.Equal(asked, []Forwarding{ethernet, six, gone}) {
		t.Errorf("%q, %v; asked for %v", changed, err, asked)
	}
	if _, err := os.Stat(string(f)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the note stays: %v", err)
	}
	if changed, err := f.Undo(off); err != nil || len(changed) > 0 || len(asked) != 3 {
		t.Errorf("again: %q, %v, %v", changed, err, asked)
	}
	if err := os.WriteFile(string(f), []byte("on"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, readErr := f.Undo(off)
	for _, err := range []error{f.Add(ethernet), readErr} {
		if err == nil || !strings.Contains(err.Error(), string(f)+" is not what the kubelet wrote") {
			t.Errorf("a file of others: %v", err)
		}
	}
	if err := ForwardingFile("").Add(ethernet); err != nil {
		t.Errorf("no file: %v", err)
	}
}
