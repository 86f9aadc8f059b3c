package rig

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// Go runs a go command that builds this repository for Windows.
func Go(ctx context.Context, args ...string) error {
	return goFor(ctx, "GOOS=windows", ".", args)
}

// GoTool builds in the module of another project's program, a directory of hack/tools.
func GoTool(ctx context.Context, module string, args ...string) error {
	return goFor(ctx, "GOOS=windows", filepath.Join("hack/tools", module), args)
}

// GoLinux builds for this machine.
func GoLinux(ctx context.Context, args ...string) error {
	return goFor(ctx, "GOOS=linux", ".", args)
}

func goFor(ctx context.Context, system, dir string, args []string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	// Tests with deadlines run beside builds, so that builds run at low priority.
	cmd := exec.CommandContext(ctx, "nice", append([]string{"-n", "10", "go", args[0], "-trimpath"}, args[1:]...)...)
	cmd.Dir = filepath.Join(root, dir)
	cmd.Env = append(os.Environ(), system, "GOARCH=amd64", "CGO_ENABLED=0")
	_, err = finish(cmd)
	return err
}

var guest struct {
	sync.Mutex
	path string
}

// buildGuest builds the rig's own exe, once per process.
func buildGuest(ctx context.Context) (string, error) {
	guest.Lock()
	defer guest.Unlock()
	if guest.path != "" {
		return guest.path, nil
	}
	dir, err := wineDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "guest.exe")
	fresh := fmt.Sprintf("%s.%d", path, os.Getpid()) // another process may be running the old file
	if err := Go(ctx, "build", "-o", fresh, "./test/windows/rig/guest"); err != nil {
		return "", err
	}
	if err := os.Rename(fresh, path); err != nil {
		return "", err
	}
	guest.path = path
	return path, nil
}

// Overlay returns the file for go build's -overlay that makes Go's standard library work on Wine.
func Overlay(ctx context.Context) (string, error) {
	dir, err := wineDir()
	if err != nil {
		return "", err
	}
	goroot, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("cannot find Go's sources: %w", err)
	}
	return writeOverlay(string(goroot[:len(goroot)-1]), filepath.Join(dir, "overlay"))
}
