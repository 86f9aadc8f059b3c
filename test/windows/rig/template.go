package rig

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// bcryptprimitives is the source of a DLL that every Go program loads first and Wine 8 lacks.
//
//go:embed csource/bcryptprimitives.c
var bcryptprimitives []byte

// cloneNumber distinguishes the prefixes of this process.
var cloneNumber struct {
	sync.Mutex
	last int
}

// Root returns the repository that contains the working directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "hack/VERSION")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("cannot find the repository in %s or above it", dir)
		}
	}
}

func wineDir() (string, error) {
	root, err := Root()
	return filepath.Join(root, "_output/wine"), err
}

// servicesTimeout makes Wine's service manager wait a minute for a service to start. The manager reads it when it starts in a clone. Its default is
// 10 s, too short for a busy machine; Windows waits 30 s (wine programs/services/services.c).
var servicesTimeout = []string{"reg.exe", "add", `HKLM\System\CurrentControlSet\Control`, "/v", "ServicesPipeTimeout", "/t", "REG_DWORD", "/d", "60000", "/f"}

// noDebugger makes a crashed program exit. Wine would start its debugger, a console program: if the console's server crashes, debuggers would
// start debuggers endlessly.
var noDebugger = []string{"reg.exe", "add", `HKLM\Software\Microsoft\Windows NT\CurrentVersion\AeDebug`, "/v", "Debugger", "/t", "REG_SZ", "/d", "", "/f"}

// template returns an initialized prefix, in which nothing runs any more. It is recreated when the recipe or Wine changes.
func template(ctx context.Context, as account) (string, error) {
	version, err := exec.CommandContext(ctx, wine, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("cannot ask Wine for its version: %w", err)
	}
	recipe := fmt.Appendf(nil, "%s %d %s %q %q %s", version, as.uid, bcryptprimitives, servicesTimeout, noDebugger, fontconfig)
	return Kept("template", recipe, func(dir string) error { return makeTemplate(ctx, as, dir) })
}

var keeping sync.Mutex

// Kept returns a directory below _output/wine that later runs reuse. It is recreated when the recipe changes. name distinguishes
// directories of different kinds; build fills an empty directory.
func Kept(name string, recipe []byte, build func(dir string) error) (string, error) {
	keeping.Lock()
	defer keeping.Unlock()
	parent, err := wineDir()
	if err != nil {
		return "", err
	}
	hash := sha256.Sum256(recipe)
	dir := filepath.Join(parent, name+"-"+hex.EncodeToString(hash[:6]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	fresh := fmt.Sprintf("%s.%d", dir, os.Getpid())
	err = os.MkdirAll(fresh, 0o755)
	if err == nil {
		err = build(fresh)
	}
	if err == nil {
		err = os.Rename(fresh, dir)
	}
	if err != nil {
		_ = os.RemoveAll(fresh)
		if _, there := os.Stat(dir); there != nil { // otherwise another process was first
			return "", err
		}
	}
	return dir, nil
}

func makeTemplate(ctx context.Context, as account, dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, "home"), 0o755); err != nil {
		return err
	}
	for _, path := range []string{dir, filepath.Join(dir, "home")} {
		if err := as.own(path); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, fontconfigFile), []byte(fontconfig), 0o644); err != nil {
		return err
	}
	for _, argv := range [][]string{{wine, "wineboot", "-i"}, append([]string{wine}, servicesTimeout...), append([]string{wine}, noDebugger...), {wineserver, "-w"}} { // the last command writes the registry to disk
		argv = append(as.become(""), argv...)
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Env, cmd.Dir = environment(dir), dir
		if _, err := finish(cmd); err != nil {
			return err
		}
	}
	source := filepath.Join(dir, "bcryptprimitives.c")
	if err := os.WriteFile(source, bcryptprimitives, 0o644); err != nil {
		return err
	}
	return CompileDLL(ctx, filepath.Join(dir, "drive_c/windows/system32/bcryptprimitives.dll"), source, "-ladvapi32")
}

// CompileDLL compiles a DLL from C and .def files; sources may include linker flags.
func CompileDLL(ctx context.Context, out string, sources ...string) error {
	return CompileEXE(ctx, out, append([]string{"-shared"}, sources...)...)
}

// CompileEXE compiles a program in the same way.
func CompileEXE(ctx context.Context, out string, sources ...string) error {
	_, err := finish(exec.CommandContext(ctx, compiler, append([]string{"-O2", "-Wall", "-Werror", "-o", out}, sources...)...))
	return err
}

// clone creates a prefix from the template with hard links: Wine replaces the registry's files and never writes to program
// files.
func clone(ctx context.Context, template string, build int) (string, error) {
	parent := filepath.Join(filepath.Dir(template), strconv.Itoa(build))
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", err
	}
	if err := sweep(ctx, parent); err != nil {
		return "", err
	}
	cloneNumber.Lock()
	cloneNumber.last++
	dir := filepath.Join(parent, fmt.Sprintf("%d.%d", os.Getpid(), cloneNumber.last))
	cloneNumber.Unlock()
	if _, err := finish(exec.CommandContext(ctx, "cp", "-al", template, dir)); err != nil {
		return "", err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.reg"))
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("the template %s has no registry: remove it and run the test again (%w)", template, err)
	}
	for _, file := range files {
		if _, err := finish(exec.CommandContext(ctx, "cp", "-a", "--remove-destination", filepath.Join(template, filepath.Base(file)), file)); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// sweep removes prefixes whose process died before it could.
func sweep(ctx context.Context, parent string) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	as, err := who()
	if err != nil {
		return err
	}
	for _, entry := range entries {
		pid, _, found := strings.Cut(entry.Name(), ".")
		if _, err := os.Stat("/proc/" + pid); found && !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		dir := filepath.Join(parent, entry.Name())
		if _, err := os.Stat(filepath.Join(dir, "system.reg")); err == nil {
			if err := stopServer(ctx, as, dir); err != nil {
				return err
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}
