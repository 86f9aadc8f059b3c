package lab

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckRelease(t *testing.T) {
	for name, want := range map[string]string{
		"": "", "25": "", "28": "", "29": "", "29-overlay2": "", "29-nftables": "",
		"30":    `ENGINE: got "30", want one of 25, 28, 29, 29-overlay2, 29-nftables, or nothing for Debian's engine`,
		"20.10": `ENGINE: got "20.10", want one of 25, 28, 29, 29-overlay2, 29-nftables, or nothing for Debian's engine`,
	} {
		got := ""
		if err := CheckRelease(name); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("ENGINE=%s:\ngot  %s\nwant %s", name, got, want)
		}
	}
}

// TestEngineStays checks that a cluster cannot change its engine: its containers are in that engine's storage.
func TestEngineStays(t *testing.T) {
	before := runDir
	t.Cleanup(func() { runDir = before })
	runDir = t.TempDir()
	t.Setenv("ENGINE", "")
	debian := New(t.TempDir(), io.Discard)
	if err := debian.upRelease(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Setenv("ENGINE", "29")
	err := New(t.TempDir(), io.Discard).upRelease(t.Context())
	if want := "the cluster runs on Debian's Docker, want Docker 29.0.0-beta.24, containerd's image store: run make down, then try again"; err == nil || err.Error() != want {
		t.Errorf("another engine on a running cluster:\ngot  %v\nwant %s", err, want)
	}
	if err := os.WriteFile(releaseFile(), []byte("28"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("ENGINE", "")
	if got := New(t.TempDir(), io.Discard).Engine; got != "28" {
		t.Errorf("without ENGINE in the environment a program works on engine %q, want the running one, 28", got)
	}
	c := New(t.TempDir(), io.Discard)
	c.EngineAPI = "1.41"
	if err := c.upRelease(t.Context()); err == nil || !strings.Contains(err.Error(), "ENGINE cannot be combined with ENGINE_API") {
		t.Errorf("with ENGINE_API: %v", err)
	}
}

// TestEnginePrograms checks that built programs come before the machine's: containerd 2 cannot start containers with a
// shim of another version.
func TestEnginePrograms(t *testing.T) {
	before := runDir
	t.Cleanup(func() { runDir = before })
	runDir = t.TempDir()
	t.Setenv("ENGINE", "29-overlay2")
	c := New(t.TempDir(), io.Discard)
	for _, name := range []string{"29/dockerd", "containerd/containerd", "containerd/runc"} {
		path := filepath.Join(c.Tools, "engines", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{"dockerd": "29/dockerd", "containerd": "containerd/containerd", "runc": "containerd/runc"} {
		if got := c.program(name); got != filepath.Join(c.Tools, "engines", want) {
			t.Errorf("%s is %s, want engines/%s", name, got, want)
		}
	}
	node := c.Nodes[0]
	if got := node.containerdConfig(); !strings.HasPrefix(got, "version = 3\n") || !strings.Contains(got, `"io.containerd.nri.v1.nri"`) || !strings.Contains(got, "containerd-29-overlay2") {
		t.Errorf("configuration of containerd 2:\n%s", got)
	}
	c.Engine = ""
	if got := node.containerdConfig(); !strings.HasPrefix(got, "version = 2\n") || strings.Contains(got, "nri") {
		t.Errorf("configuration of Debian's containerd:\n%s", got)
	}
}
