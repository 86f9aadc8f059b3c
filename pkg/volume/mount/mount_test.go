package mount

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMountinfo(t *testing.T) {
	const info = `22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:25 / /r/pods/u rw - tmpfs tmpfs rw
31 30 0:26 / /r/pods/u/a\040b\134c rw shared:1 master:2 - tmpfs tmpfs rw
32 22 0:27 / /r/pods/u2 rw - tmpfs tmpfs rw
33 22 0:27 / /r/pods/u/gone//deleted rw - tmpfs tmpfs rw

short line
`
	want := []string{"/r/pods/u", `/r/pods/u/a b\c`, "/r/pods/u/gone"}
	if filepath.Separator != '/' {
		t.Skip("mountinfo is Linux's")
	}
	if got := parseMountinfo([]byte(info), "/r/pods/u"); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

func FuzzMountinfo(f *testing.F) {
	f.Add([]byte("30 22 0:25 / /d/x\\040y rw - tmpfs tmpfs rw\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, p := range parseMountinfo(data, "/d") {
			if !strings.HasPrefix(p, "/d") {
				t.Fatalf("%q is not below /d", p)
			}
		}
	})
}

// TestLinks: a link counts as a mount, and is removed without what it leads to.
func TestLinks(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(target, 0o755), os.WriteFile(filepath.Join(target, "keep"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	mounts := Linked{SystemLinks()}
	for _, path := range []string{dir, link, filepath.Join(target, "keep")} {
		on, err := mounts.IsMount(path)
		if err = errors.Join(err, mounts.Unmount(path)); on || err != nil {
			t.Errorf("%s, which is no link: %v, %v", path, on, err)
		}
	}
	err := os.Symlink(target, link)
	if fi, statErr := os.Lstat(link); err != nil || statErr != nil || fi.Mode()&fs.ModeSymlink == 0 { // Wine reports success and makes nothing
		t.Skipf("cannot make links here: %v", errors.Join(err, statErr))
	}
	if on, err := mounts.IsMount(link); !on || err != nil {
		t.Errorf("a link: %v, %v", on, err)
	}
	if to, ok, err := mounts.Read(link); to != target || !ok || err != nil {
		t.Errorf("read %q, %v, %v", to, ok, err)
	}
	for range 2 {
		if err := errors.Join(mounts.Unmount(link), mounts.Force(target)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(link); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the link: %v", err)
	}
	if _, err := os.Stat(filepath.Join(target, "keep")); err != nil {
		t.Errorf("what it led to: %v", err)
	}
	if err := os.Symlink(filepath.Join(dir, "gone"), link); err != nil {
		t.Fatal(err)
	}
	if on, err := mounts.IsMount(link); !on || err != nil {
		t.Errorf("a link to nothing: %v, %v", on, err)
	}
	if err := errors.Join(mounts.Tmpfs(dir, ""), mounts.Bind(nil, dir)); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("mounted: %v", err)
	}
	if points, err := mounts.Below(dir); len(points) > 0 || err != nil {
		t.Errorf("below: %q, %v", points, err)
	}
}
