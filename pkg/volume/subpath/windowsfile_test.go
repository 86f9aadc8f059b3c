package subpath

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume/access"
)

// TestOnWindows: a directory of a volume is mounted by its path and made where it is missing, a file is copied to where no other account reads it, and a
// pipe stays as it is.
func TestOnWindows(t *testing.T) {
	volume, podDir := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(volume, "file"), []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	lists := map[string]string{}
	platform := pod.Platform{OS: "windows", Build: 20348}
	k := Maker{Platform: platform, Access: access.Control{Platform: platform, Set: func(path, sddl string) error { lists[path] = sddl; return nil }}}
	to := Target{PodDir: podDir, Volume: "data", Container: "web", Index: 1}
	at := filepath.Join(Dir(podDir), "data", "web", "1")
	const pipe = `\\.\pipe\docker_engine`
	for name, c := range map[string]struct {
		mount     pod.Mount
		sub, want string // "! words": the error
		copied    bool
	}{
		"a whole volume":      {mount: pod.Mount{HostPath: volume, ContainerPath: `C:\data`}, want: volume},
		"a new directory":     {mount: pod.Mount{HostPath: volume, ContainerPath: `C:\data`}, sub: `a\b`, want: filepath.Join(volume, "a", "b")},
		"a file":              {mount: pod.Mount{HostPath: volume, ContainerPath: `C:\data\f`, ReadOnly: true}, sub: "file", want: at, copied: true},
		"a volume of a file":  {mount: pod.Mount{HostPath: filepath.Join(volume, "file"), ContainerPath: `C:\data\f`, ReadOnly: true}, want: at, copied: true},
		"a file to write":     {mount: pod.Mount{HostPath: volume, ContainerPath: `C:\data\f`}, sub: "file", want: "! can only mount directories"},
		"a pipe":              {mount: pod.Mount{HostPath: pipe, ContainerPath: pipe}, want: pipe},
		"a part of a pipe":    {mount: pod.Mount{HostPath: pipe, ContainerPath: pipe}, sub: "x", want: "! cannot have a subPath"},
		"a read-only pipe":    {mount: pod.Mount{HostPath: pipe, ContainerPath: pipe, ReadOnly: true}, want: "! cannot be read-only"},
		"a pipe as directory": {mount: pod.Mount{HostPath: pipe, ContainerPath: `C:\data`}, want: "! mountPath must be one as well"},
		"a way out":           {mount: pod.Mount{HostPath: volume, ContainerPath: `C:\data`}, sub: `..\x`, want: "! must not contain '..'"},
	} {
		m := c.mount
		err := k.Apply(&m, c.sub, to)
		if words, wrong := strings.CutPrefix(c.want, "! "); wrong {
			if err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("%s: %v, want %q", name, err, words)
			}
			continue
		}
		if err != nil || m.HostPath != c.want || m.Copy != c.copied {
			t.Errorf("%s: %+v, %v, want %s", name, m, err, c.want)
		}
		if strings.HasPrefix(m.HostPath, `\\`) {
			continue
		}
		if text, err := os.ReadFile(m.HostPath); c.copied && (string(text) != "content" || lists[filepath.Dir(at)] == "") || !c.copied && err == nil {
			t.Errorf("%s: %q, %v; access lists %q", name, text, err, lists)
		}
	}
}
