package docker

import (
	"os"
	"testing"
)

// testFiles locates containers' files; missing containers are omitted, and a local engine reports its process.
func testFiles(t *testing.T, r *rig) {
	p := r.pod("files", []string{"pause"})
	ids := r.run(p)
	info, err := r.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time from the cache
		got, err := r.Files(t.Context(), append(ids, "0123456789ab"))
		if _, ok := got[ids[0]]; err != nil || len(got) != 1 || !ok {
			t.Fatalf("got %v, %v; want %s alone", got, err, ids[0])
		}
		layer := got[ids[0]].Layer
		if r.fake == nil && r.Local() && layer == "" && (info.Snapshots || info.StorageDriver == "overlay2") {
			t.Errorf("no layer of a running container in %s", info.StorageDriver)
		}
		if layer != "" && r.Local() {
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
	for _, calls := range []int{19, 20} { // other callers may ask in between
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
