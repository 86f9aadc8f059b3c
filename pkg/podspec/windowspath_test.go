package podspec

import (
	"strings"
	"testing"
)

func TestWindowsPath(t *testing.T) {
	long := `C:\` + strings.Repeat(`directory\`, 60) + "file"
	for in, want := range map[string]string{
		`C:\etc\foo`: `C:\etc\foo`, "C:/etc/foo": `C:\etc\foo`, "/cache": `C:\cache`, `\cache`: `C:\cache`, `d:\x\\y\.\`: `d:\x\y`, `C:\`: `C:\`, "/": `C:\`,
		`\\.\pipe\docker_engine`: `\\.\pipe\docker_engine`, "//./PIPE/x/y": `\\.\pipe\x\y`, `\\server\share\x`: `\\server\share\x`, long: long,
		"data": `! relative`, "C:data": "! relative", "1:/x": "! relative", "": "! relative",
		`C:\a\..\b`: `! ".."`, "/a/../../Windows": `! ".."`, `C:\a\nul.txt`: "! name of a device", "/com1": "! name of a device", `C:\a\CON`: "! name of a device",
		`C:\f:stream`: "! is not a file name", `C:\a.`: "! at its end", "C:\\a\x00": "! control characters", `C:\a?`: "! is not a file name",
		`\\.\C:`: "!", `\\?\C:\x`: "!", `\\.\PhysicalDrive0`: "!", `\\server`: "! no share", `\\.\pipe\`: "! no pipe", `\\.\pipe\a:b`: "! no pipe",
	} {
		got, err := WindowsPath(in)
		if part, refused := strings.CutPrefix(want, "!"); refused {
			if err == nil || !strings.Contains(err.Error(), strings.TrimSpace(part)) {
				t.Errorf("%q: %q, %v; want an error with %q", in, got, err, part)
			}
		} else if err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", in, got, err, want)
		}
	}
}

func FuzzWindowsPath(f *testing.F) {
	for _, s := range []string{`C:\a`, "/a/..", `\\.\pipe\x`, `\\s\h\c`, "c:/nul", `\\?\x`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		once, err := WindowsPath(s)
		if err != nil {
			return
		}
		if again, err := WindowsPath(once); err != nil || again != once {
			t.Fatalf("%q became %q and then %q, %v", s, once, again, err)
		}
		if _, inside := WindowsWithin(once, once); !inside {
			t.Fatalf("%q is not within itself", once)
		}
	})
}

func TestWindowsWithin(t *testing.T) {
	for _, c := range []struct {
		path, dir, want string
	}{
		{`C:\Data\x\y`, `c:\data`, `x\y`}, {`C:\data`, `C:\DATA`, ""}, {`C:\database`, `C:\data`, "!"}, {`C:\x`, `C:\`, "x"}, {`D:\x`, `C:\`, "!"}, {`C:\`, `C:\x`, "!"},
	} {
		got, ok := WindowsWithin(c.path, c.dir)
		if ok != (c.want != "!") || ok && got != c.want {
			t.Errorf("%s in %s: %q, %v", c.path, c.dir, got, ok)
		}
	}
}
