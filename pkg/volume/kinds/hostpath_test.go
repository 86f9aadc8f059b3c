package kinds_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/volume/volumetest"
)

func TestHostPath(t *testing.T) {
	r := volumetest.New(t, volumetest.Linux())
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(filepath.Join(dir, "file"), nil, 0o644))
	must(os.Symlink(dir, filepath.Join(dir, "link")))
	for _, c := range []struct {
		path string
		kind v1.HostPathType
		want string // message; "": accepted
	}{
		{dir, v1.HostPathUnset, ""}, {dir, v1.HostPathDirectory, ""}, {dir + "/link", v1.HostPathDirectory, ""}, {dir + "/file", v1.HostPathFile, ""},
		{dir + "/file", v1.HostPathFileOrCreate, ""}, {"/dev/null", v1.HostPathCharDev, ""}, {dir + "/new/deep", v1.HostPathDirectoryOrCreate, ""}, {dir + "/newfile", v1.HostPathFileOrCreate, ""},
		{dir + "/made", v1.HostPathUnset, ""},
		{dir + "/absent", v1.HostPathDirectory, "hostPath type check failed: " + dir + "/absent is not a directory"},
		{dir + "/file", v1.HostPathDirectory, "is not a directory"}, {dir + "/file", v1.HostPathDirectoryOrCreate, "is not a directory"},
		{dir, v1.HostPathFile, "is not a file"}, {dir + "/absent", v1.HostPathFile, "is not a file"}, {dir, v1.HostPathFileOrCreate, "is not a file"},
		{dir + "/file", v1.HostPathSocket, "is not a socket file"}, {dir + "/absent", v1.HostPathSocket, "is not a socket file"},
		{dir, v1.HostPathCharDev, "is not a character device"}, {"/dev/null", v1.HostPathBlockDev, "is not a block device"},
		{dir, "Socks", "Socks is an invalid volume type"},
	} {
		paths, err := r.Prepare(t.Context(), volumetest.Pod(volumetest.HostVol("v", c.path, c.kind)))
		if c.want == "" && (err != nil || paths["v"] != c.path) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s as %q: %v, %v", c.path, c.kind, paths, err)
		}
	}
	if fi, err := os.Stat(dir + "/new/deep"); err != nil || fi.Mode() != fs.ModeDir|0o755 {
		t.Errorf("%v, %v", fi, err)
	}
	must(r.Clean(t.Context(), "uid-1"))
	if _, err := os.Stat(dir + "/file"); err != nil {
		t.Error("Clean deleted what belongs to the host")
	}
}
