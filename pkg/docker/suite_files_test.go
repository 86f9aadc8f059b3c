package docker

import (
	"os"
	"testing"
)

// testFiles finds where containers lie; those that are gone are left out, and an engine on this host tells its process.
func testFiles(t *testing.T, r *rig) {
	p := r.pod("files", []string{"pause"})
	ids := r.run(p)
	for range 2 { // the second time from memory
		got, err := r.Files(t.Context(), append(ids, "0123456789ab"))
		if _, ok := got[ids[0]]; err != nil || len(got) != 1 || !ok {
			t.Fatalf("got %v, %v; want %s alone", got, err, ids[0])
		}
		if layer := got[ids[0]].Layer; layer != "" && r.Local() {
			if info, err := os.Stat(layer); err != nil || !info.IsDir() {
				t.Errorf("layer %s is no directory: %v", layer, err)
			}
		}
	}
	if r.fake == nil {
		return
	}
	inspections := func() (n int) {
		r.fake.Requests(true)
		if got, err := r.Files(t.Context(), ids); err != nil || len(got) != 1 {
			t.Errorf("got %v, %v", got, err)
		}
		return len(r.fake.Requests(false))
	}
	for _, calls := range []int{19, 20} { // others may ask in turn
		for range calls {
			if got, err := r.Files(t.Context(), nil); err != nil || len(got) != 0 {
				t.Errorf("nothing asked for: got %v, %v", got, err)
			}
		}
		if n, want := inspections(), calls-19; n != want {
			t.Errorf("after %d calls that do not name it the engine is asked %d times, want %d", calls, n, want)
		}
	}
	if pid := r.PID(); pid < 0 || pid == 1 {
		t.Errorf("the engine is process %d", pid)
	}
}
