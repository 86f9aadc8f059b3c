package mount

import (
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
