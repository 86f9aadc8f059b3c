package volume_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/winkube/winkube/pkg/volume/access"
	"github.com/winkube/winkube/pkg/volume/mount"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

// inNamespace runs test on a thread with its own mount namespace, which ends with the thread.
func inNamespace[T testing.TB](t T, test func(t T)) {
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
		test(t)
	}()
	<-done
}

func TestKernel(t *testing.T) {
	r := volumetest.NewWith(t, volumetest.Linux(), mount.System())
	outside := t.TempDir()
	inNamespace(t, func(t *testing.T) {
		r.API.Secrets["s"] = map[string][]byte{"k": []byte("v")}
		sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err == nil {
			err = unix.Bind(sock, &unix.SockaddrUnix{Name: outside + "/sock"})
		}
		if err = errors.Join(err, unix.Close(sock), unix.Mkfifo(outside+"/fifo", 0o600), os.Mkdir(outside+"/dir", 0o755), os.WriteFile(outside+"/dir/keep", []byte("x"), 0o644)); err != nil {
			t.Error(err)
			return
		}
		p := volumetest.Pod(volumetest.Vol("s", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}), volumetest.Vol("mem", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: new(resource.MustParse("1Mi"))}}),
			volumetest.HostVol("host", outside, ""))
		paths, err := r.Prepare(t.Context(), p)
		if err != nil {
			t.Error(err)
			return
		}
		for name, mode := range map[string]os.FileMode{"s": 0o755, "mem": 0o777} {
			var st unix.Statfs_t
			fi, err := os.Stat(paths[name])
			if errors.Join(err, unix.Statfs(paths[name], &st)) != nil || st.Type != unix.TMPFS_MAGIC || fi.Mode().Perm() != mode {
				t.Errorf("%s: type %x, mode %v, %v", name, st.Type, fi.Mode(), err)
			}
			if name == "mem" && st.Blocks*uint64(st.Bsize) != 1<<20 {
				t.Errorf("size %d", st.Blocks*uint64(st.Bsize))
			}
		}
		var first, again []string
		for _, sub := range []string{"dir", "dir/keep", "sock", "fifo", "new"} {
			m, err := r.Mount(p, v1.VolumeMount{Name: "host", MountPath: "/x", SubPath: sub})
			if err != nil {
				t.Errorf("%s: %v", sub, err)
				continue
			}
			a, err1 := os.Stat(m.HostPath)
			b, err2 := os.Stat(filepath.Join(outside, sub))
			if errors.Join(err1, err2) != nil || !os.SameFile(a, b) {
				t.Errorf("%s is not what is mounted at %s: %v %v", sub, m.HostPath, err1, err2)
			}
			first, _ = r.Host.Mounts.Below(r.Host.Root)
			if _, err := r.Mount(p, v1.VolumeMount{Name: "host", MountPath: "/x", SubPath: sub}); err != nil {
				t.Error(err)
			}
			if again, _ = r.Host.Mounts.Below(r.Host.Root); len(first) != 3 || len(again) != 3 {
				t.Errorf("%s: mounted %d and then %d", sub, len(first), len(again))
			}
		}
		// Killed between mounting and noting, and something mounted by the pod itself.
		if err := errors.Join(os.Mkdir(paths["mem"]+"/m", 0o755), mount.System().Tmpfs(paths["mem"]+"/m", "mode=0755"), mount.System().Tmpfs(paths["s"], "mode=0755")); err != nil {
			t.Error(err)
		}
		busy, err := os.Open(paths["mem"])
		if err != nil {
			t.Error(err)
		}
		if err := r.Clean(t.Context(), "uid-1"); err != nil {
			t.Error(err)
		}
		busy.Close()
		if left, err := r.Host.Mounts.Below(r.Host.Root); err != nil || len(left) != 0 {
			t.Errorf("left mounted: %q, %v", left, err)
		}
		if b, err := os.ReadFile(outside + "/dir/keep"); err != nil || string(b) != "x" {
			t.Errorf("the host's file is gone: %v", err)
		}
		if left, err := r.Leftovers(); err != nil || len(left) != 0 {
			t.Errorf("left: %v, %v", left, err)
		}
		info, err := os.ReadFile("/proc/thread-self/mountinfo")
		if err != nil || strings.Contains(string(info), r.Host.Root) {
			t.Errorf("mountinfo: %v", err)
		}
	})
}

// TestMemoryMode: an emptyDir in memory has the sticky bit, as upstream's, and so has a directory that a subPath makes in it.
func TestMemoryMode(t *testing.T) {
	r := volumetest.NewWith(t, volumetest.Linux(), mount.System())
	inNamespace(t, func(t *testing.T) {
		p := volumetest.Pod(volumetest.Vol("mem", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}))
		p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: new(int64(123))}
		paths, err := r.Prepare(t.Context(), p)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Unmount(paths["mem"], unix.MNT_DETACH)
		m, err := r.Mount(p, v1.VolumeMount{Name: "mem", MountPath: "/test-volume", SubPath: "test-sub"})
		if err != nil {
			t.Error(err)
			return
		}
		for _, path := range []string{paths["mem"], m.HostPath} {
			fi, err := os.Stat(path)
			if err != nil {
				t.Error(err)
				return
			}
			if gid, _ := access.GroupOf(fi); fi.Mode().String() != "dgtrwxrwxrwx" || gid != 123 {
				t.Errorf("%s: %s, group %d; want dgtrwxrwxrwx, group 123", path, fi.Mode(), gid)
			}
		}
		if err := r.Clean(t.Context(), p.UID); err != nil {
			t.Error(err)
		}
	})
}

// TestHas: each mount and unmount shows in the next answer, whoever makes it, and a path that only starts like a mount point is none.
func TestHas(t *testing.T) {
	dir, m := t.TempDir(), mount.System()
	strange := filepath.Join(dir, `with space\and more`)
	for _, d := range []string{dir + "/a", dir + "/ab", strange} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	inNamespace(t, func(t *testing.T) {
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
	dir, m := b.TempDir(), mount.System()
	inNamespace(b, func(b *testing.B) {
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
