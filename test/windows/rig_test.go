package windows

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// wine is where Debian's wine64 package puts the loader; it has no name on PATH.
const wine = "/usr/lib/wine/wine64"

// prefix is a Wine prefix that pretends to be one build of Windows Server.
type prefix struct {
	dir string
	env []string
}

// newPrefix makes the prefix once and keeps it under _output, since making it takes several seconds and 700 MB.
func newPrefix(t *testing.T, build string) prefix {
	t.Helper()
	if os.Getenv("WINKUBE_WINE") == "" {
		t.Skip("runs under Wine, in `make check` (WINKUBE_WINE=1)")
	}
	if _, err := os.Stat(wine); err != nil {
		t.Fatalf("Wine is missing (%v): run hack/ensure-packages.sh wine", err)
	}
	dir, err := filepath.Abs("../../_output/wine/" + build)
	if err != nil {
		t.Fatal(err)
	}
	p := prefix{dir: dir, env: append(os.Environ(), "WINEPREFIX="+dir, "WINEDEBUG=-all", "WINEDLLOVERRIDES=mscoree,mshtml=")}
	if _, err := os.Stat(filepath.Join(dir, "ready")); err == nil {
		return p
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	p.run(t, wine, "wineboot", "-i")
	dll := filepath.Join(dir, "drive_c/windows/system32/bcryptprimitives.dll")
	p.run(t, "x86_64-w64-mingw32-gcc", "-shared", "-O2", "-o", dll, "testdata/bcryptprimitives.c", "-ladvapi32")
	reg := filepath.Join(dir, "version.reg")
	if err := os.WriteFile(reg, []byte(versionRegistry(build)), 0o644); err != nil {
		t.Fatal(err)
	}
	p.run(t, wine, "regedit", "Z:"+strings.ReplaceAll(reg, "/", `\`))
	if err := os.WriteFile(filepath.Join(dir, "ready"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return p
}

// versionRegistry is what makes RtlGetVersion and the registry say that this is a server of that build.
func versionRegistry(build string) string {
	const header = "Windows Registry Editor Version 5.00\r\n\r\n"
	return header + `[HKEY_LOCAL_MACHINE\Software\Microsoft\Windows NT\CurrentVersion]` + "\r\n" +
		fmt.Sprintf("\"CurrentBuild\"=%q\r\n\"CurrentBuildNumber\"=%q\r\n", build, build) +
		"\"CurrentVersion\"=\"10.0\"\r\n\"CurrentMajorVersionNumber\"=dword:0000000a\r\n\"CurrentMinorVersionNumber\"=dword:00000000\r\n" +
		"\"ProductName\"=\"Windows Server (Wine)\"\r\n\"UBR\"=dword:00000001\r\n\r\n" +
		`[HKEY_LOCAL_MACHINE\System\CurrentControlSet\Control\ProductOptions]` + "\r\n\"ProductType\"=\"ServerNT\"\r\n"
}

// run runs a tool to its end and fails the test with its output.
func (p prefix) run(t *testing.T, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = p.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("cannot run %q: %v\n%s", argv, err, out)
	}
	return string(out)
}

// start starts one of our binaries and ends it with the test. Its log is printed when the test failed.
func (p prefix) start(t *testing.T, env []string, exe string, args ...string) {
	t.Helper()
	path, err := filepath.Abs("../../_output/bin/windows/amd64/" + exe)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run KUBE_BUILD_PLATFORMS=windows/amd64 make", err)
	}
	var log bytes.Buffer
	cmd := exec.Command(wine, append([]string{path}, args...)...)
	cmd.Env = append(p.env, env...)
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s printed:\n%s", exe, log.String())
		}
	})
}

// TestMain ends the prefix's own server with the tests, so that nothing of Wine outlives them.
func TestMain(m *testing.M) {
	code := m.Run()
	if os.Getenv("WINKUBE_WINE") != "" {
		dirs, _ := filepath.Glob("../../_output/wine/*")
		for _, dir := range dirs {
			abs, _ := filepath.Abs(dir)
			cmd := exec.Command("/usr/lib/wine/wineserver64", "-k")
			cmd.Env = append(os.Environ(), "WINEPREFIX="+abs)
			_ = cmd.Run()
		}
	}
	os.Exit(code)
}
