package lab

import (
	"io"
	"os"
	"strings"
	"testing"
)

func TestCheckRuntime(t *testing.T) {
	for _, test := range []struct{ name, engine, want string }{
		{"", "", ""}, {"", "29", ""}, {"crun", "", ""}, {"runc-privileged", "", ""}, {"runc-privileged", "29", ""},
		{"runsc", "", `RUNTIME: got "runsc", want crun or runc-privileged, or nothing for runc`},
		{"crun", "28", "RUNTIME: Debian's crun is too old for ENGINE=28: leave one out"},
		{"crun", "29", "RUNTIME: Debian's crun is too old for ENGINE=29: leave one out"},
		{"crun", "29-overlay2", "RUNTIME: Debian's crun is too old for ENGINE=29-overlay2: leave one out"},
	} {
		got := ""
		if err := CheckRuntime(test.name, test.engine); err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("RUNTIME=%s ENGINE=%s:\ngot  %s\nwant %s", test.name, test.engine, got, test.want)
		}
	}
}

// TestRuntimeStays checks that a running cluster keeps its runtime, and that its engines get it as their default.
func TestRuntimeStays(t *testing.T) {
	before := runDir
	t.Cleanup(func() { runDir = before })
	runDir = t.TempDir()
	t.Setenv("RUNTIME", "")
	t.Setenv("ENGINE", "")
	c := New(t.TempDir(), io.Discard)
	if err := c.upRuntime(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Nodes[0].runtimes(); err != nil || got["default-runtime"] != nil {
		t.Errorf("without RUNTIME the default is %v, %v", got["default-runtime"], err)
	}
	t.Setenv("RUNTIME", "crun")
	c = New(t.TempDir(), io.Discard)
	if err := c.upRuntime(t.Context()); err == nil || !strings.Contains(err.Error(), "run make down") {
		t.Errorf("another runtime on a running cluster: %v", err)
	}
	if err := os.MkdirAll(c.Nodes[0].Dir(), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Nodes[0].runtimes(); err != nil || got["default-runtime"] != "crun" {
		t.Errorf("with RUNTIME=crun the default is %v, %v", got["default-runtime"], err)
	}
}
