package mount

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// inNamespace runs do on a thread with its own mount namespace, which ends with the thread.
func inNamespace(t testing.TB, do func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread is not used again
		err := unix.Unshare(unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err != nil {
			t.Errorf("cannot make a mount namespace: %v", err)
			return
		}
		do()
	}()
	<-done
}

// TestHas: each mount and unmount shows in the next answer, whoever makes it, and a path that only starts like a mount point is none.
func TestHas(t *testing.T) {
	dir, m := t.TempDir(), System()
	strange := filepath.Join(dir, `with space\and more`)
	for _, d := range []string{dir + "/a", dir + "/ab", strange} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	inNamespace(t, func() {
		want := func(when string, mounted ...string) {
			t.Helper()
			for _, d := range []string{dir + "/a", dir + "/ab", strange, dir + "/none"} {
				is := false
				for _, p := range mounted {
					is = is || p == d
				}
				if got, err := m.Has(d); err != nil || got != is {
					t.Errorf("%s: something is mounted at %s: %v, %v", when, d, got, err)
				}
			}
		}
		want("before")
		for i := range 20 {
			if err := m.Tmpfs(dir+"/ab", "size=1m"); err != nil {
				t.Error(err)
			}
			want(fmt.Sprintf("mounted, %d", i), dir+"/ab")
			if err := unix.Mount(dir+"/ab", strange, "", unix.MS_BIND, ""); err != nil { // by another program
				t.Error(err)
			}
			want(fmt.Sprintf("bound, %d", i), dir+"/ab", strange)
			for _, d := range []string{strange, dir + "/ab"} {
				if err := unix.Unmount(d, 0); err != nil {
					t.Error(err)
				}
			}
			want(fmt.Sprintf("unmounted, %d", i))
		}
	})
}

// BenchmarkMounted looks at one mount of a thousand while nothing changes.
func BenchmarkMounted(b *testing.B) {
	dir, m := b.TempDir(), System()
	inNamespace(b, func() {
		if err := m.Tmpfs(dir, "size=1m"); err != nil {
			b.Error(err)
			return
		}
		last := ""
		for i := range 1000 {
			last = fmt.Sprintf("%s/%d", dir, i)
			if err := os.Mkdir(last, 0o755); err != nil {
				b.Error(err)
			}
			if err := unix.Mount(last, last, "", unix.MS_BIND, ""); err != nil {
				b.Error(err)
			}
		}
		for b.Loop() {
			if is, err := m.Has(last); err != nil || !is {
				b.Error(is, err)
			}
		}
	})
}
