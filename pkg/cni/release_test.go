package cni

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestReleaseAll: a host that is a node no more gets back what its pods had of the network, by the plugins of the kubelet's own directories, without its
// configuration; and where a plugin is gone, it is said and the record kept.
func TestReleaseAll(t *testing.T) {
	s := newStage(t, twoPlugins)
	p := s.plugins()
	borrowed := attachment("c3")
	borrowed.Borrowed = true
	for _, a := range []Attachment{attachment("c1"), attachment("c2"), borrowed} {
		if a.Borrowed {
			a.Netns = NetnsOf("c1")
			if err := p.keep(a); err != nil {
				t.Fatal(err)
			}
		} else if _, err := p.Add(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
	leave := Config{StateDir: s.cfg.StateDir, BinDirs: []string{t.TempDir()}}
	plugin := s.cfg.BinDirs[1]
	if err := os.Rename(plugin, plugin+".away"); err != nil {
		t.Fatal(err)
	}
	n, err := ReleaseAll(t.Context(), leave)
	if got := s.leases(); n != 1 || err == nil || !strings.Contains(err.Error(), `"second"`) || !strings.Contains(err.Error(), plugin) || !slices.Equal(got, []string{"c1", "c2"}) {
		t.Errorf("without the plugins: released %d, %v; leases %q", n, err, got)
	}
	if err := os.Rename(plugin+".away", plugin); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{2, 0} { // again it finds nothing
		if n, err := ReleaseAll(t.Context(), leave); err != nil || n != want {
			t.Errorf("released %d, %v; want %d", n, err, want)
		}
	}
	if leases, files := s.leases(), s.files(); len(leases) > 0 || len(files) > 0 {
		t.Errorf("leases %q and files %q are left", leases, files)
	}
}
