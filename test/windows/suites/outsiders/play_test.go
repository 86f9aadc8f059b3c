package outsiders

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/winkube/winkube/test/windows/moby"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestDockerd sends winkube's requests for networks and containers to each dockerd.exe, restarts it, and compares the answers with
// testdata/NAME.golden. If WINKUBE_WINDOWS names one Windows Server, only one version runs.
func TestDockerd(t *testing.T) {
	for _, one := range moby.Releases {
		t.Run(one.Name, func(t *testing.T) {
			if os.Getenv("WINKUBE_WINDOWS") != "" && one.Name != "dockerd-28" {
				t.Skip("make test-windows runs this version")
			}
			d := host(t, one)
			r := &report{t: t, build: one.Build, hns: d.HNS, log: d.Log, hcs: d.HCS}
			start := func() {
				d.start(t)
				r.url = d.URL()
			}
			start()
			r.play(func() {
				if err := d.Stop(); err != nil {
					t.Error(err)
				}
				start()
			})
			compare(t, filepath.Join("testdata", one.Name+".golden"), r.b.String())
			for _, unknown := range d.Log.Unknown() {
				t.Errorf("unknown: %s", unknown)
			}
		})
	}
}

func compare(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Error(err)
	}
	if string(want) != got {
		t.Errorf("%s differs; run with -update and look at the difference; got:\n%s", file, got)
	}
}
