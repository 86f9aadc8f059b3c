package rig

import (
	"context"
	"debug/pe"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// InstallDLL puts the file at path into System32 as name ("iphlpapi.dll") and lets Windows programs load it by override ("native",
// "native,builtin"). It returns only when a program in the prefix was seen to load that very file: an override that did not take effect
// would leave Wine's own, whose stubs succeed silently.
func (p *Prefix) InstallDLL(ctx context.Context, name, path, override string) error {
	return p.install(ctx, name, path, override, "dll")
}

// InstallEXE does the same for a program that is called by name or by its path in System32 ("netsh.exe").
func (p *Prefix) InstallEXE(ctx context.Context, name, path string) error {
	return p.install(ctx, name, path, "native", "exe")
}

func (p *Prefix) install(ctx context.Context, name, path, override, kind string) error {
	target := filepath.Join(p.SystemDir(), name)
	if err := replaceFile(path, target); err != nil {
		return fmt.Errorf("cannot install %s: %w", name, err)
	}
	key := strings.TrimSuffix(name, ".dll") // programs keep their extension there
	if err := p.SetRegistry(ctx, dllKey, key, override); err != nil {
		return fmt.Errorf("cannot install %s: %w", name, err)
	}
	want, err := identity(target)
	if err != nil {
		return fmt.Errorf("cannot install %s: %w", name, err)
	}
	loaded, err := p.Run(ctx, p.guest, kind, name)
	if err != nil {
		return fmt.Errorf("cannot install %s: it does not load: %w", name, err)
	}
	if got := strings.TrimSpace(loaded); got != want {
		return fmt.Errorf("cannot install %s: the override %q did not take effect: programs load %s, wanted is %s", name, override, got, want)
	}
	return nil
}

// KeepBuiltin saves Wine's own DLL under another name, so that a DLL which takes its place can forward to it.
func (p *Prefix) KeepBuiltin(name, as string) error {
	data, err := os.ReadFile(filepath.Join(p.SystemDir(), name))
	if err != nil {
		return err
	}
	const at, mark = 0x40, "Wine builtin DLL"
	if len(data) < at+len(mark) || string(data[at:at+len(mark)]) != mark {
		return fmt.Errorf("cannot keep %s: it is not Wine's own", name)
	}
	clear(data[at : at+len(mark)]) // the mark ties a file to its first name
	target := filepath.Join(p.SystemDir(), as)
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(target, data, 0o644)
}

// replaceFile copies a file to a place at which a hard link of the template may stand.
func replaceFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// identity tells one image from another by what the loader maps: its headers. The guest program prints the same of what was loaded.
func identity(path string) (string, error) {
	f, err := pe.Open(path)
	if err != nil {
		return "", fmt.Errorf("%s is no Windows image: %w", path, err)
	}
	defer f.Close()
	header, ok := f.OptionalHeader.(*pe.OptionalHeader64)
	if !ok {
		return "", fmt.Errorf("%s is not a 64-bit image", path)
	}
	return fmt.Sprintf("time=%d entry=%#x size=%d code=%d", f.TimeDateStamp, header.AddressOfEntryPoint, header.SizeOfImage, header.SizeOfCode), nil
}
