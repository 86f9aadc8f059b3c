package rig

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
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

// TestInstalled: the error says what to install.
func TestInstalled(t *testing.T) {
	if os.Getenv("WINKUBE_WINE") == "" {
		t.Skip("where Wine is, in `make test-windows` (WINKUBE_WINE=1)")
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
	_ = sleeper.Wait() // returns, because nothing outlives a reboot; with what status does not matter
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
	if err := p.InstallDLL(ctx, "vmcompute.dll", dll, "native"); err != nil { // Wine has none
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

// TestRunAgain: what fails without a word is run again, and in the end the failure is told.
func TestRunAgain(t *testing.T) {
	p := Test(t, 20348)
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
	if _, err := writeOverlay(goroot, dir); err == nil || !strings.Contains(err.Error(), "this Go needs another patch") {
		t.Errorf("an unknown library was patched: %v", err)
	}
	if _, err := Overlay(t.Context()); err != nil {
		t.Errorf("the installed Go: %v", err)
	}
}
