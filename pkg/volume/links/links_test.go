package links

import (
	"errors"
	"strings"
	"testing"
)

// disk has links by their paths.
type disk map[string]string

func (d disk) read(path string) (string, bool, error) {
	target, ok := d[path]
	if target == "error" {
		return "", false, errors.New("access denied")
	}
	return target, ok, nil
}

func TestFollow(t *testing.T) {
	const staged = `C:\k\plugins\globalmount`
	for _, test := range []struct {
		about, path string
		disk        disk
		want        End
		err         string
	}{
		{about: "no link", path: `C:\k\pods\u\mount`, want: End{Path: `C:\k\pods\u\mount`}},
		{
			about: "a share, staged as csi-proxy stages it", path: `C:\k\pods\u\mount`,
			disk: disk{`C:\k\pods\u\mount`: `c:\k\plugins\globalmount`, staged: `\\nas\data\`},
			want: End{Path: staged, Outside: `\\nas\data\`},
		},
		{
			about: "a disk, mounted in a folder", path: `C:\k\pods\u\mount`,
			disk: disk{`C:\k\pods\u\mount`: staged + `\`, staged: `\\?\Volume{4e68c962-0000-0000-0000-100000000000}\`},
			want: End{Path: staged, Outside: `\\?\Volume{4e68c962-0000-0000-0000-100000000000}\`},
		},
		{
			about: "a part of a share", path: `C:\k\pods\u\mount`,
			disk: disk{`C:\k\pods\u\mount`: staged + `\sub\dir`, staged: `\\?\UNC\nas\data`},
			want: End{Path: staged + `\sub\dir`, Outside: `\\nas\data\sub\dir`},
		},
		{about: "a directory elsewhere", path: `C:\m`, disk: disk{`C:\m`: `\??\D:\volumes\1`}, want: End{Path: `D:\volumes\1`}},
		{about: "a drive", path: `C:\m`, disk: disk{`C:\m`: `d:`}, want: End{Path: `D:\`}},
		{about: "relative", path: `C:\a\b\m`, disk: disk{`C:\a\b\m`: `..\c\.\d`, `C:\a\c`: `C:\e`}, want: End{Path: `C:\e\d`}},
		{about: "above the root", path: `C:\a\m`, disk: disk{`C:\a\m`: `..\..\..\Windows`}, want: End{Path: `C:\Windows`}},
		{about: "from the drive's root", path: `C:\a\m`, disk: disk{`C:\a\m`: `\b`}, want: End{Path: `C:\b`}},
		{about: "a link before the last element", path: `C:\a\m\x`, disk: disk{`C:\a`: `C:\b`, `C:\b\m`: `E:\`}, want: End{Path: `E:\x`}},
		{about: "slashes", path: `C:\m`, disk: disk{`C:\m`: `//nas/data/x`}, want: End{Path: `C:\m`, Outside: `\\nas\data\x`}},
		{about: "a shadow copy", path: `C:\m`, disk: disk{`C:\m`: `\\?\GLOBALROOT\Device\Shadow1`}, want: End{Path: `C:\m`, Outside: `\\?\GLOBALROOT\Device\Shadow1`}},
		{about: "on Linux", path: "/r/pods/m", disk: disk{"/r/pods/m": "/r/staged", "/r/staged": "../share"}, want: End{Path: "/share"}},
		{about: "a share, on Linux", path: "/r/m/x", disk: disk{"/r/m": `\\nas\data`}, want: End{Path: "/r/m/x", Outside: `\\nas\data\x`}},
		{about: "a circle", path: `C:\m`, disk: disk{`C:\m`: `C:\n`, `C:\n`: `C:\m`}, err: "more than 40 links"},
		{about: "no share", path: `C:\m`, disk: disk{`C:\m`: `\\nas`}, err: `want \\server\share`},
		{about: "a drive's current directory", path: `C:\m`, disk: disk{`C:\m`: `D:x`}, err: "want an absolute path"},
		{about: "no device", path: `C:\m`, disk: disk{`C:\m`: `\\?\`}, err: "no path of a device"},
		{about: "unreadable", path: `C:\m`, disk: disk{`C:\m`: "error"}, err: `cannot read the link C:\m: access denied`},
		{about: "relative to nothing", path: `m`, err: "no absolute path"},
	} {
		got, err := Follow(test.disk.read, test.path)
		if got != test.want || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: %+v, %v; want %+v, %q", test.about, got, err, test.want, test.err)
		}
	}
}

func TestBelow(t *testing.T) {
	for _, test := range []struct {
		path, dir string
		want      bool
	}{
		{`C:\k\pods`, `c:\K`, true}, {`C:\k`, `C:\k\`, true}, {`\\?\C:\k\x`, `C:\k`, true}, {`C:\k`, `C:\`, true},
		{`C:\kubelet2`, `C:\kubelet`, false}, {`D:\k`, `C:\k`, false}, {`C:\k`, `C:\k\pods`, false}, {`C:\k\..\x`, `C:\k`, false},
		{`\\nas\data\x`, `\\NAS\data`, true}, {`\\nas\data2`, `\\nas\data`, false}, {`\\nas\data`, `C:\`, false}, {"x", "x", false},
	} {
		if got := Below(test.path, test.dir); got != test.want {
			t.Errorf("%s below %s: %v, want %v", test.path, test.dir, got, test.want)
		}
	}
	share, dir := End{Path: `C:\m`, Outside: `\\nas\data\`}, End{Path: `C:\m`}
	if !share.Within(share) || !(End{`C:\x`, `\\nas\data\x`}).Within(share) || share.Within(dir) || dir.Within(share) || !dir.Within(dir) {
		t.Error("Within confuses directories and shares")
	}
}

// TestMountable: what engines cannot mount is refused with the build that can, or with the mountPath that would work.
func TestMountable(t *testing.T) {
	share, volume := End{`C:\m`, `\\nas\data\`}, End{`C:\m`, `\\?\Volume{1}\`}
	drive, dir := End{Path: `D:\`}, End{Path: `D:\x`}
	for _, test := range []struct {
		end    End
		build  int
		inside string
		want   string
	}{
		{share, 14393, `C:\data`, "share"}, {share, 14393, `G:\`, "share"}, {share, 16299, `C:\data`, ""}, {share, 17763, `C:\data`, ""},
		{volume, 14393, `C:\data`, "moby#34729"}, {volume, 14393, `G:\`, ""}, {volume, 14393, `G:`, ""}, {volume, 16299, `C:\data`, ""},
		{drive, 14393, `C:\data`, "moby#35436"}, {drive, 16299, `C:\data`, "moby#35436"}, {drive, 16299, `G:\`, ""}, {drive, 17763, `C:\data`, ""},
		{dir, 14393, `C:\data`, ""},
	} {
		err := test.end.Mountable(test.build, test.inside)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v on %d at %s: %v, want %q", test.end, test.build, test.inside, err, test.want)
		}
	}
}

func FuzzFollow(f *testing.F) {
	for _, s := range []string{`C:\x`, `\\nas\data\..\..\x`, `\\?\Volume{1}\`, `..\..`, `/x`, `\\?\UNC\`, `D:`, ``} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, target string) {
		end, err := Follow(disk{`C:\k\m`: target}.read, `C:\k\m`)
		if err != nil {
			return
		}
		if strings.Contains(end.Path, `\..\`) || end.Outside == "" && strings.HasPrefix(end.Path, `\\`) {
			t.Fatalf("%q leads to %+v", target, end)
		}
		if end.Outside != "" {
			return
		}
		if again, err := Follow(disk{}.read, end.Path); err != nil || again != end {
			t.Fatalf("%q leads to %+v, and that to %+v, %v", target, end, again, err)
		}
	})
}
