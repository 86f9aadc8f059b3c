package rig

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/output"
)

func TestVersions(t *testing.T) {
	for _, build := range Builds {
		t.Run(strconv.Itoa(build), func(t *testing.T) {
			p := Test(t, build) // Open itself asks RtlGetVersion
			got, err := p.Registry(t.Context(), versionKey, "ProductName")
			if err != nil || got != versions[build].product {
				t.Errorf("ProductName is %q (%v), want %q", got, err, versions[build].product)
			}
		})
	}
	if _, err := Open(t.Context(), 9600); err == nil || !strings.Contains(err.Error(), "9600") {
		t.Errorf("a build that is not known: %v", err)
	}
}

// TestInstalled: the error names the package to install.
func TestInstalled(t *testing.T) {
	if os.Getenv("WINKUBE_WINE") == "" {
		t.Skip("needs Wine: run make test-windows, or set WINKUBE_WINE=1")
	}
	if err := installed(); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", t.TempDir())
	if err := installed(); err == nil || !strings.Contains(err.Error(), compiler+" is missing") || !strings.Contains(err.Error(), "apt-get install gcc-mingw-w64-x86-64") {
		t.Errorf("without a compiler: %v", err)
	}
}

func TestReboot(t *testing.T) {
	p := Test(t, 20348)
	ctx := t.Context()
	if err := os.WriteFile(p.Path(`C:\kept.txt`), []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := p.SetRegistry(ctx, `HKEY_LOCAL_MACHINE\Software\winkube`, "Kept", "a value"); err != nil {
		t.Fatal(err)
	}
	sleeper := p.Command(ctx, p.guest, "keep")
	input, err := sleeper.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	if err := p.Reboot(ctx); err != nil {
		t.Fatal(err)
	}
	_ = sleeper.Wait() // returns because nothing survives a reboot; the status does not matter
	if got, err := p.Registry(ctx, bootKey, "BootId"); err != nil || got != "0x8" {
		t.Errorf("BootId is %q (%v), want 0x8", got, err)
	}
	if got, err := p.Registry(ctx, `HKEY_LOCAL_MACHINE\Software\winkube`, "Kept"); err != nil || got != "a value" {
		t.Errorf("the registry lost a value: %q %v", got, err)
	}
	if out, err := p.Run(ctx, "cmd.exe", "/c", `type C:\kept.txt`); err != nil || strings.TrimSpace(out) != "kept" {
		t.Errorf("the file reads %q %v", out, err)
	}
}

func TestInstall(t *testing.T) {
	p := Test(t, 17763)
	ctx := t.Context()
	dll, exe := filepath.Join(t.TempDir(), "shim.dll"), filepath.Join(t.TempDir(), "tool.exe")
	if err := CompileDLL(ctx, dll, "testdata/shim.c"); err != nil {
		t.Fatal(err)
	}
	if err := CompileEXE(ctx, exe, "testdata/tool.c"); err != nil {
		t.Fatal(err)
	}
	if err := p.InstallDLL(ctx, "pdh.dll", dll, "builtin"); err == nil || !strings.Contains(err.Error(), "did not take effect") {
		t.Errorf("an override that takes Wine's own: %v", err)
	}
	if err := p.InstallDLL(ctx, "pdh.dll", dll, "native"); err != nil {
		t.Error(err)
	}
	if err := p.InstallDLL(ctx, "vmcompute.dll", dll, "native"); err != nil { // Wine does not have this DLL
		t.Error(err)
	}
	if err := p.InstallEXE(ctx, "netsh.exe", exe); err != nil {
		t.Error(err)
	}
	if out, err := p.Run(ctx, "cmd.exe", "/c", `C:\windows\system32\netsh.exe`); err != nil || !strings.Contains(out, "the rig's netsh") {
		t.Errorf("netsh printed %q %v", out, err)
	}
	if err := p.KeepBuiltin("iphlpapi.dll", "iphlpreal.dll"); err != nil {
		t.Error(err)
	}
	if err := p.KeepBuiltin("pdh.dll", "pdhreal.dll"); err == nil {
		t.Error("a DLL that is not Wine's own was kept as such")
	}
}

// TestRunAgain: a program that fails without output is run again; if it keeps failing, the error says so.
func TestRunAgain(t *testing.T) {
	p := Test(t, 20348)
	runAgain(t, p)
}

func runAgain(t *testing.T, p *Prefix) {
	t.Helper()
	script := "@echo off\r\nif exist C:\\once goto second\r\necho x> C:\\once\r\nexit 1\r\n:second\r\necho ran\r\n"
	if err := os.WriteFile(p.Path(`C:\again.bat`), []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := p.Run(t.Context(), "cmd.exe", "/c", `C:\again.bat`); err != nil || strings.TrimSpace(out) != "ran" {
		t.Errorf("%q, %v", out, err)
	}
	if out, err := p.Run(t.Context(), "cmd.exe", "/c", "exit 3"); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("%q, %v", out, err)
	}
}

// TestStandardError: standard error is not part of a program's output, and goes to the log.
func TestStandardError(t *testing.T) {
	p := Test(t, 20348)
	var log bytes.Buffer
	p.Log = &log
	out, err := p.Run(t.Context(), "cmd.exe", "/c", "echo noise>&2& echo answer& echo more noise>&2")
	if err != nil || strings.TrimSpace(out) != "answer" {
		t.Errorf("%q, %v", out, err)
	}
	if got := log.String(); !strings.Contains(got, "cmd.exe /c echo") || !strings.Contains(got, "noise") || strings.Contains(got, "\nanswer") {
		t.Errorf("the log has %q", got)
	}
	if _, err := p.Run(t.Context(), "cmd.exe", "/c", "echo the reason>&2& exit 3"); err == nil || !strings.Contains(err.Error(), "the reason") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("a program that fails: %v", err)
	}
}

// TestNoisyLibraries removes fontconfig's settings from a prefix. Then that library, which every Wine program loads, prints an error in each, as on
// a machine where no cache can be written. These lines are treated neither as output nor as the reason of a failure.
func TestNoisyLibraries(t *testing.T) {
	p := Test(t, 20348)
	if err := os.Remove(filepath.Join(p.Dir, fontconfigFile)); err != nil {
		t.Fatal(err)
	}
	cmd := p.Command(t.Context(), "cmd.exe", "/c", "echo answer")
	said, err := output.Of(cmd)
	if err != nil || !strings.Contains(said.Stderr, "Fontconfig") {
		t.Fatalf("the library is silent, and the test shows nothing: %+v, %v", said, err)
	}
	if err := p.learnNoise(t.Context()); err != nil {
		t.Fatal(err)
	}
	if said, err := p.Finish(p.Command(t.Context(), "cmd.exe", "/c", "echo answer& echo own words>&2")); err != nil ||
		strings.TrimSpace(said.Stdout) != "answer" || strings.TrimSpace(said.Stderr) != "own words" {
		t.Errorf("%+v, %v", said, err)
	}
	runAgain(t, p)
	dll := filepath.Join(t.TempDir(), "shim.dll")
	if err := CompileDLL(t.Context(), dll, "testdata/shim.c"); err != nil {
		t.Fatal(err)
	}
	if err := p.InstallDLL(t.Context(), "vmcompute.dll", dll, "native"); err != nil {
		t.Error(err)
	}
	if got, err := p.Registry(t.Context(), bootKey, "BootId"); err != nil || got != "0x7" {
		t.Errorf("BootId is %q (%v), want 0x7", got, err)
	}
}

// TestClosedDirectory: below a directory that only root may enter, and without a font cache on the machine, Wine's libraries print nothing.
func TestClosedDirectory(t *testing.T) {
	p := Test(t, 20348)
	if p.as.switched && !p.as.sees {
		t.Skip("root may not choose securebits here (CAP_SETPCAP): libraries find nothing below a closed directory")
	}
	closed := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	inside := &Prefix{Build: p.Build, Dir: filepath.Join(closed, "prefix"), as: p.as, guest: p.guest}
	home, err := template(t.Context(), p.as)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := finish(exec.CommandContext(t.Context(), "cp", "-a", home, inside.Dir)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := inside.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := inside.boot(t.Context(), versions[p.Build].registry(p.Build)); err != nil {
		t.Fatal(err)
	}
	if len(inside.noise) > 0 {
		t.Errorf("libraries print for every program: %q", inside.noise)
	}
	for _, name := range []string{"HOME", "XDG_CACHE_HOME", "FONTCONFIG_FILE", "WINEPREFIX"} {
		if !slices.ContainsFunc(inside.Command(t.Context(), "cmd.exe").Env, func(one string) bool { return strings.HasPrefix(one, name+"="+inside.Dir) }) {
			t.Errorf("%s is not the prefix's own", name)
		}
	}
}

func TestUnprivileged(t *testing.T) {
	p := Test(t, 20348)
	if p.as.uid == 0 {
		t.Error("Wine runs as root")
	}
	forbidden := filepath.Join(t.TempDir(), "forbidden")
	if err := os.WriteFile(forbidden, nil, 0o444); err != nil {
		t.Fatal(err)
	}
	if out, err := p.Run(t.Context(), "cmd.exe", "/c", "echo x> "+WindowsPath(forbidden)); err == nil {
		if data, _ := os.ReadFile(forbidden); len(data) > 0 {
			t.Errorf("a file of another user was written: %s", out)
		}
	}
}

func TestOverlay(t *testing.T) {
	goroot, dir := t.TempDir(), t.TempDir()
	for _, patch := range patches {
		path := filepath.Join(goroot, filepath.FromSlash(patch.file))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("a\n"+patch.before+"\nb"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := writeOverlay(goroot, dir); err != nil {
		t.Fatal(err)
	}
	for _, patch := range patches {
		got, err := os.ReadFile(filepath.Join(dir, filepath.Base(patch.file)))
		if want := "a\n" + patch.after + "\nb"; err != nil || string(got) != want {
			t.Errorf("%s: got %q (%v), want %q", patch.file, got, err, want)
		}
	}
	first := filepath.Join(goroot, filepath.FromSlash(patches[0].file))
	if err := os.WriteFile(first, []byte("rewritten upstream"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := writeOverlay(goroot, dir); err == nil || !strings.Contains(err.Error(), "this version of Go needs another patch") {
		t.Errorf("an unknown library was patched: %v", err)
	}
	if _, err := Overlay(t.Context()); err != nil {
		t.Errorf("the installed Go: %v", err)
	}
}

// TestCrash: a program that crashes exits, and Wine starts no debugger.
func TestCrash(t *testing.T) {
	p := Test(t, 20348)
	dir := t.TempDir()
	source, exe := filepath.Join(dir, "crash.c"), filepath.Join(dir, "crash.exe")
	if err := os.WriteFile(source, []byte("int main(void) { *(volatile int *)8 = 1; return 0; }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := CompileEXE(t.Context(), exe, source, "-Wno-array-bounds"); err != nil {
		t.Fatal(err)
	}
	inside := p.Path(`C:\crash.exe`)
	if err := replaceFile(exe, inside); err != nil {
		t.Fatal(err)
	}
	said, err := p.Finish(p.Command(t.Context(), inside))
	if err == nil || strings.Contains(said.String(), "Backtrace") {
		t.Errorf("the program that crashes ends with %v: %s", err, said)
	}
}
