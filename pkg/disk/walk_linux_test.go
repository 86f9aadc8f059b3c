package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/winkube/winkube/pkg/host"
)

// reference adds up a tree by paths, which works for short paths.
func reference(t testing.TB, dir string) (sum Amount) {
	t.Helper()
	seen := map[uint64]bool{}
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		if st.Nlink > 1 && !e.IsDir() {
			if seen[st.Ino] {
				return nil
			}
			seen[st.Ino] = true
		}
		sum = sum.add(Amount{uint64(st.Blocks) * 512, 1})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

func never(host.Disk) bool { return false }

func must(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// dig creates a chain of directories with a file in the last one.
func dig(t testing.TB, dir string, levels int) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_PATH, 0)
	must(t, err)
	for range levels {
		must(t, unix.Mkdirat(fd, "d", 0o755))
		next, err := unix.Openat(fd, "d", unix.O_PATH, 0)
		must(t, err, unix.Close(fd))
		fd = next
	}
	file, err := unix.Openat(fd, "f", unix.O_CREAT|unix.O_WRONLY, 0o600)
	must(t, err)
	_, err = unix.Write(file, make([]byte, 1<<20))
	must(t, err, unix.Fsync(file), unix.Close(file), unix.Close(fd))
}

// TestDeep: paths of any length count, with a limited number of open directories.
func TestDeep(t *testing.T) {
	const levels = 12_000
	dir := t.TempDir()
	dig(t, dir, levels)
	must(t, os.WriteFile(filepath.Join(dir, "z"), make([]byte, 1<<20), 0o600)) // beside the chain, at the top
	w := NewWalk(dir)
	most := 0
	sum, done, err := w.Step(func(host.Disk) bool { most = max(most, len(w.open)); return false })
	if unread, why := w.Unread(); err != nil || !done || unread > 0 || sum.InodesUsed != levels+3 || sum.Used < 2<<20 {
		t.Errorf("%d bytes in %d files, done %v, %d unread (%v), %v; want 2 MiB in %d", sum.Used, sum.InodesUsed, done, unread, why, err, levels+3)
	}
	if most > maxOpen || len(w.open) != 0 {
		t.Errorf("%d directories were open, %d are", most, len(w.open))
	}
}

// TestOddities: only directories are opened, whatever else is there, and no link is followed.
func TestOddities(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"\n", strings.Repeat("x", 255), "\xff\xfe", "a b", "..d"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
	}
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600), os.Symlink(".", filepath.Join(dir, "loop")), os.Symlink("/", filepath.Join(dir, "root")),
		os.Symlink("nowhere", filepath.Join(dir, "dangling")), os.Mkdir(filepath.Join(dir, "closed"), 0))
	if err := unix.Mknod(filepath.Join(dir, "zero"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))); err != nil && !errors.Is(err, unix.EPERM) {
		t.Fatal(err)
	}
	sparse, err := os.Create(filepath.Join(dir, "sparse"))
	must(t, err, sparse.Truncate(1<<40), sparse.Close())
	want := Amount{}
	if os.Getuid() == 0 {
		want = reference(t, dir)
	}
	got, err := Measure(dir)
	if os.Getuid() == 0 && (got != want || err != nil) || got.Bytes > 1<<20 {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

// TestLinks: a file with several names counts once, even if there are more such files than a walk remembers.
func TestLinks(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "d"), 0o755))
	for i := range 100 {
		name := filepath.Join(dir, fmt.Sprint(i))
		must(t, os.WriteFile(name, make([]byte, 10_000), 0o600))
		for j := range 3 {
			must(t, os.Link(name, filepath.Join(dir, "d", fmt.Sprint(i, j))))
		}
	}
	want := reference(t, dir)
	for _, known := range []int{0, maxSeen - 50, maxSeen} {
		w := NewWalk(dir)
		for i := range known {
			w.seen[identity{inode: uint64(i)}] = struct{}{}
		}
		sum, _, err := w.Step(never)
		if (Amount{sum.Used, sum.InodesUsed}) != want || err != nil {
			t.Errorf("with %d remembered: %+v, %v; want %+v", known, sum, err, want)
		}
		if len(w.seen) > maxSeen {
			t.Errorf("%d are remembered", len(w.seen))
		}
	}
}

// TestPauses: a walk in pieces finds the same as one in a single piece.
func TestPauses(t *testing.T) {
	dir := t.TempDir()
	for i := range 10 {
		must(t, os.MkdirAll(filepath.Join(dir, fmt.Sprint(i), "a/b/c"), 0o755))
		for j := range 100 {
			must(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i), "a/b", fmt.Sprint(j)), []byte("x"), 0o600))
		}
	}
	want := reference(t, dir)
	w := NewWalk(dir)
	w.limit = 1
	pieces, last := 1, uint64(0)
	for {
		sum, done, err := w.Step(func(host.Disk) bool { return true })
		must(t, err)
		if sum.Used < last {
			t.Errorf("%d bytes after %d", sum.Used, last)
		}
		last = sum.Used
		if done {
			if n, why := w.Unread(); (Amount{sum.Used, sum.InodesUsed}) != want || n > 0 || pieces < 10 {
				t.Errorf("in %d pieces: %+v, %d unread (%v); want %+v", pieces, sum, n, why, want)
			}
			break
		}
		pieces++
	}
}

// TestChanges: files and directories come, move and go during the pauses of a walk. It counts what stays exactly once, and misses nothing that it
// would have to report.
func TestChanges(t *testing.T) {
	const files, size = 40, 256 << 10 // of each file that stays; all others are empty, and their directories smaller
	for _, limit := range []int{1, maxOpen} {
		dir := t.TempDir()
		path := func(kind string, i int) string { return filepath.Join(dir, fmt.Sprint(kind, i)) }
		for i := range files {
			stays := path("stays", i)
			must(t, os.Mkdir(stays, 0o755), os.WriteFile(filepath.Join(stays, "f"), make([]byte, size), 0o600))
		}
		want := reference(t, dir)
		for i := range 5 {
			busy := path("busy", i)
			must(t, os.MkdirAll(filepath.Join(busy, "below/gone"), 0o755))
			for j := range 300 {
				must(t, os.WriteFile(filepath.Join(busy, fmt.Sprint("old", j)), nil, 0o600), os.WriteFile(filepath.Join(busy, "below/gone", fmt.Sprint(j)), nil, 0o600))
			}
		}
		most := reference(t, dir).Files
		w := NewWalk(dir)
		w.limit = limit
		pieces, last := 0, uint64(0)
		for {
			sum, done, err := w.Step(func(host.Disk) bool { return true })
			must(t, err)
			if sum.InodesUsed < last {
				t.Errorf("limit %d: %d files after %d", limit, sum.InodesUsed, last)
			}
			if last = sum.InodesUsed; done {
				if n, why := w.Unread(); n > 0 || pieces < 10 || sum.Used < want.Bytes || sum.Used >= want.Bytes+size || sum.InodesUsed < want.Files || sum.InodesUsed > most {
					t.Errorf("limit %d, in %d pieces: %+v, %d unread (%v); want from %d to %d files, and less than %d bytes more than %d",
						limit, pieces, sum, n, why, want.Files, most, size, want.Bytes)
				}
				break
			}
			pieces++
			for i := range 5 {
				busy := path("busy", i)
				if pieces < 100 {
					must(t, os.Remove(filepath.Join(busy, fmt.Sprint("old", pieces))), os.Rename(filepath.Join(busy, fmt.Sprint("old", 100+pieces)), filepath.Join(busy, fmt.Sprint("moved", pieces))))
				}
				must(t, os.WriteFile(filepath.Join(busy, fmt.Sprint("new", pieces)), nil, 0o600))
				most += 2                         // a file that has moved may be counted twice
				if limit > 1 && pieces == 2*i+1 { // with closed directories, the way back from one that is gone would be lost: see TestMoved
					must(t, os.RemoveAll(filepath.Join(busy, "below")))
				}
			}
		}
	}
}

// TestMoved: moving a directory during its measurement does not lead the walk elsewhere, and the lost part is reported.
func TestMoved(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "tree/a/b"), 0o755), os.Mkdir(filepath.Join(dir, "other"), 0o755))
	for i := range 200 {
		must(t, os.WriteFile(filepath.Join(dir, "tree/a/b", fmt.Sprint(i)), nil, 0o600), os.WriteFile(filepath.Join(dir, "other", fmt.Sprint(i)), nil, 0o600))
	}
	w := NewWalk(filepath.Join(dir, "tree"))
	w.limit = 1
	if _, done, err := w.Step(func(host.Disk) bool { return true }); done || err != nil {
		t.Fatal(done, err)
	}
	must(t, os.Rename(filepath.Join(dir, "tree/a/b"), filepath.Join(dir, "other/b")))
	sum, done, err := w.Step(never)
	if n, why := w.Unread(); !done || err != nil || n != 1 || !errors.Is(why, errMoved) || sum.InodesUsed != 203 {
		t.Errorf("done %v, %d files, %d unread (%v), %v", done, sum.InodesUsed, n, why, err)
	}
}

// TestMounts: mounts below count elsewhere, even mounts of a part of the same file system, in a circle.
func TestMounts(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "in/loop"), 0o755), os.MkdirAll(filepath.Join(dir, "in/memory"), 0o755),
		os.WriteFile(filepath.Join(dir, "in/f"), make([]byte, 5000), 0o600), os.WriteFile(filepath.Join(dir, "in/g"), nil, 0o600))
	want := reference(t, dir)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with its namespace
		if err := errors.Join(unix.Unshare(unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")); err != nil {
			t.Logf("skipped: this process may not mount: %v", err)
			return
		}
		if err := errors.Join(unix.Mount(dir, filepath.Join(dir, "in/loop"), "", unix.MS_BIND, ""), unix.Mount("tmpfs", filepath.Join(dir, "in/memory"), "tmpfs", 0, ""),
			unix.Mount(filepath.Join(dir, "in/f"), filepath.Join(dir, "in/g"), "", unix.MS_BIND, ""),
			os.WriteFile(filepath.Join(dir, "in/memory/x"), make([]byte, 5000), 0o600)); err != nil {
			t.Error(err)
			return
		}
		got, err := Measure(dir)
		// The mount points themselves are covered: two directories and an empty file.
		if err != nil || got.Files != want.Files-3 || got.Bytes < 5000 || got.Bytes > want.Bytes {
			t.Errorf("%+v, %v; want three files less than %+v", got, err, want)
		}
	}()
	<-done
}

// TestGone: a missing directory, or a non-directory, is an error and opens nothing.
func TestGone(t *testing.T) {
	dir := t.TempDir()
	if _, err := Measure(filepath.Join(dir, "no")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing there: %v", err)
	}
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	if _, err := Measure(filepath.Join(dir, "fifo")); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a FIFO: %v", err)
	}
}

// FuzzMeasure builds a tree from its input, and measures it with few open directories and in pieces.
func FuzzMeasure(f *testing.F) {
	f.Add([]byte("dddfffuulsd"), uint8(1), uint8(1))
	f.Add([]byte("dududufdfllp"), uint8(2), uint8(0))
	f.Add([]byte("ddddddddddddfuuuufuuuudfdf"), uint8(3), uint8(2))
	f.Fuzz(func(t *testing.T, program []byte, limit, every uint8) {
		dir := t.TempDir()
		at, last := dir, ""
		for i, op := range program[:min(len(program), 200)] {
			name := filepath.Join(at, fmt.Sprint(i))
			switch op {
			case 'd':
				must(t, os.Mkdir(name, 0o755))
				at = name
			case 'u':
				if at != dir {
					at = filepath.Dir(at)
				}
			case 'l':
				if last != "" {
					must(t, os.Link(last, name))
				}
			case 's':
				must(t, os.Symlink(dir, name))
			case 'p':
				must(t, unix.Mkfifo(name, 0o600))
			default:
				must(t, os.WriteFile(name, make([]byte, int(op)*100), 0o600))
				last = name
			}
		}
		want := reference(t, dir)
		w := NewWalk(dir)
		w.limit = 1 + int(limit%4)
		for n := 0; ; n++ {
			sum, done, err := w.Step(func(host.Disk) bool { return every > 0 && n%int(every) == 0 })
			if !done && err == nil {
				continue
			}
			if unread, why := w.Unread(); err != nil || unread > 0 || (Amount{sum.Used, sum.InodesUsed}) != want || len(w.open)+len(w.parked) > 0 {
				t.Fatalf("%+v, %d unread (%v), %v; want %+v", sum, unread, why, err, want)
			}
			return
		}
	})
}

// BenchmarkPods measures the trees of 100 pods with 1,000 files each.
func BenchmarkPods(b *testing.B) {
	root := b.TempDir()
	var dirs []string
	for i := range 100 {
		dir := filepath.Join(root, fmt.Sprint(i))
		dirs = append(dirs, dir)
		for j := range 1000 {
			must(b, os.MkdirAll(filepath.Join(dir, fmt.Sprint(j%20)), 0o755), os.WriteFile(filepath.Join(dir, fmt.Sprint(j%20), fmt.Sprint(j)), nil, 0o600))
		}
	}
	for b.Loop() {
		for _, dir := range dirs {
			if _, err := Measure(dir); err != nil {
				b.Fatal(err)
			}
		}
	}
}
