package paths

import (
	"testing"

	"github.com/winkube/winkube/pkg/pod"
)

func TestPathsAsValues(t *testing.T) {
	linux, windows := pod.Platform{OS: "linux"}, pod.Platform{OS: "windows", Build: 14393}
	for in, want := range map[string]string{
		`C:\data`: `C:\data`, "C:/etc/foo": `C:\etc\foo`, "/var/log": `C:\var\log`, `\\.\pipe\docker_engine`: `\\.\pipe\docker_engine`, `\\server\share`: `\\server\share`,
		"data": "!", "C:data": "!", "": "!", "a\x00b": "!", `C:\pods\..\Windows`: "!", "/x/../../etc": "!", `C:\f:stream`: "!", `\\.\PhysicalDrive0`: "!", "C:/a/NUL": "!",
	} {
		got, err := Host(windows, in)
		if (want == "!") != (err != nil) || err == nil && got != want {
			t.Errorf("Host %q: %q, %v", in, got, err)
		}
	}
	for _, c := range []struct {
		p        pod.Platform
		in, want string
	}{
		{linux, "/data", "/data"}, {linux, "data", "/data"}, {linux, "/a:b", "!"}, {linux, "", "!"},
		{windows, "/data", `C:\data`}, {windows, "C:/etc/foo", `C:\etc\foo`}, {windows, "data", `C:\data`}, {windows, `\\.\pipe\x`, `\\.\pipe\x`},
		{windows, `C:\\etc\\foo`, `C:\etc\foo`}, {windows, "E:", "!"}, {windows, `E:\`, `E:\`}, {windows, "c:/", "!"}, {windows, `C:\a\..\b`, "!"}, {windows, `\\server\share`, "!"}, {windows, "/com1", "!"},
	} {
		got, err := Container(c.p, c.in)
		if (c.want == "!") != (err != nil) || err == nil && got != c.want {
			t.Errorf("Container %s %q: %q, %v", c.p.OS, c.in, got, err)
		}
	}
}
