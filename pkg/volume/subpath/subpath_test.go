package subpath

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/winkube/winkube/pkg/pod"
)

// A container exchanges a directory for a link while its subPath is being prepared: what is bound is in the volume or nothing is.
func TestSubPathRace(t *testing.T) {
	if filepath.Separator != '/' {
		t.Skip("making links needs Linux or a privilege")
	}
	dir, outside := t.TempDir(), t.TempDir()
	if err := errors.Join(os.Mkdir(dir+"/real", 0o755), os.Mkdir(dir+"/real/x", 0o755), os.Mkdir(outside+"/x", 0o755)); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var racer sync.WaitGroup
	racer.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			target := "real"
			if i%2 == 0 {
				target = outside
			}
			os.Symlink(target, dir+"/tmp")
			os.Rename(dir+"/tmp", dir+"/link")
		}
	})
	bad, err := os.Stat(outside + "/x")
	if err != nil {
		t.Fatal(err)
	}
	good := 0
	for i := 0; i < 3000 || good == 0 && i < 100000; i++ {
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		f, err := openInside(root, "link/x")
		root.Close()
		if err != nil {
			continue
		}
		good++
		if fi, err := f.Stat(); err != nil || os.SameFile(fi, bad) {
			t.Fatalf("round %d: opened a directory outside of the volume, %v", i, err)
		}
		f.Close()
	}
	close(stop)
	racer.Wait()
	if good == 0 {
		t.Error("never opened anything")
	}
}

func TestExpand(t *testing.T) {
	env := []pod.Env{{Name: "A", Value: "1"}, {Name: "B", Value: "$(A)"}}
	for in, want := range map[string]string{"": "", "x$(A)y": "x1y", "$$(A)": "$(A)", "$(B)": "$(A)", "$": "$", "a$": "a$", "$(A": "$(A", "$x": "$x", "$$$(A)": "$1", "$()": "!", "$(C)": "!"} {
		got, err := Expand(in, env)
		if (want == "!") != (err != nil) || err == nil && got != want {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
}

func FuzzSubPath(f *testing.F) {
	for _, s := range []string{"a/b", "..", `..\..\x`, "C:x", "/etc", "a//./b", "nul"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		for _, p := range []pod.Platform{{OS: "linux"}, {OS: "windows", Build: 14393}} {
			got, err := clean(p, s)
			if err != nil {
				continue
			}
			local := filepath.IsLocal(got) || runtime.GOOS != p.OS // backslashes and drives are in names of Linux
			if !local || slices.Contains(strings.Split(got, "/"), "..") {
				t.Fatalf("%s: %q became %q", p.OS, s, got)
			}
			if p.OS == "windows" && strings.ContainsAny(got, `\:`) {
				t.Fatalf("%q became %q", s, got)
			}
			if again, err := clean(p, got); err != nil || again != got {
				t.Fatalf("%q became %q and then %q, %v", s, got, again, err)
			}
		}
	})
}
