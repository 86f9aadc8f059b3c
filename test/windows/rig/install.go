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

// Image is a DLL or a program: its name in System32 ("iphlpapi.dll", "netsh.exe") and its file.
type Image struct{ Name, Path string }

// InstallDLL copies the file at path to System32 as name ("iphlpapi.dll") and makes Windows programs load it by override ("native",
// "native,builtin"). It returns only after a program in the prefix has loaded that very file: without the override Wine would load its
// own DLL, whose stubs succeed silently.
func (p *Prefix) InstallDLL(ctx context.Context, name, path, override string) error {
	return p.install(ctx, override, Image{name, path})
}

// InstallEXE does the same for a program called by name or by its path in System32 ("netsh.exe").
func (p *Prefix) InstallEXE(ctx context.Context, name, path string) error {
	return p.install(ctx, "native", Image{name, path})
}

// Install does the same for several images, with the override "native".
func (p *Prefix) Install(ctx context.Context, images ...Image) error {
	return p.install(ctx, "native", images...)
}

func (p *Prefix) install(ctx context.Context, override string, images ...Image) error {
	var names, want, values []string
	for _, image := range images {
		target := filepath.Join(p.SystemDir(), image.Name)
		if err := replaceFile(image.Path, target); err != nil {
			return fmt.Errorf("cannot install %s: %w", image.Name, err)
		}
		id, err := identity(target)
		if err != nil {
			return fmt.Errorf("cannot install %s: %w", image.Name, err)
		}
		names, want = append(names, image.Name), append(want, id)
		values = append(values, fmt.Sprintf("%q=%q", strings.TrimSuffix(image.Name, ".dll"), override)) // overrides of programs keep the extension
	}
	if err := p.importRegistry(ctx, registryHeader+section(dllKey, values...)); err != nil {
		return fmt.Errorf("cannot install %s: %w", strings.Join(names, ", "), err)
	}
	loaded, err := p.ask(ctx, append([]string{"images"}, names...)...)
	if err != nil {
		return fmt.Errorf("cannot install %s: a file does not load: %w", strings.Join(names, ", "), err)
	}
	got := strings.Split(strings.TrimSpace(strings.ReplaceAll(loaded, "\r", "")), "\n")
	for i, name := range names {
		if i >= len(got) || got[i] != want[i] {
			return fmt.Errorf("cannot install %s: the override %q did not take effect: programs load %q, want line %d to be %s", name, override, got, i+1, want[i])
		}
	}
	return nil
}

// KeepBuiltin copies Wine's own DLL to another name, so that its replacement can forward to it.
func (p *Prefix) KeepBuiltin(name, as string) error {
	data, err := os.ReadFile(filepath.Join(p.SystemDir(), name))
	if err != nil {
		return err
	}
	const at, mark = 0x40, "Wine builtin DLL"
	if len(data) < at+len(mark) || string(data[at:at+len(mark)]) != mark {
		return fmt.Errorf("cannot keep %s: it is not Wine's own", name)
	}
	clear(data[at : at+len(mark)]) // the mark ties a file to its original name
	target := filepath.Join(p.SystemDir(), as)
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(target, data, 0o644)
}

// replaceFile copies a file over a path that may be a hard link to the template.
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

// identity identifies an image by the headers that the loader maps. The guest program prints the same for the loaded image.
func identity(path string) (string, error) {
	f, err := pe.Open(path)
	if err != nil {
		return "", fmt.Errorf("%s is not a Windows image: %w", path, err)
	}
	defer f.Close()
	header, ok := f.OptionalHeader.(*pe.OptionalHeader64)
	if !ok {
		return "", fmt.Errorf("%s is not a 64-bit image", path)
	}
	return fmt.Sprintf("time=%d entry=%#x size=%d code=%d", f.TimeDateStamp, header.AddressOfEntryPoint, header.SizeOfImage, header.SizeOfCode), nil
}

// InstallService adds a service that does nothing, starts it and has it start with each boot: other programs look for services of Windows that Wine
// lacks.
func (p *Prefix) InstallService(ctx context.Context, name string) error {
	if _, err := p.Run(ctx, "sc.exe", "create", name, "binPath=", WindowsPath(p.guest)+" service "+name, "start=", "auto"); err != nil {
		return err
	}
	_, err := p.Run(ctx, "sc.exe", "start", name)
	return err
}

// MountVolume has programs of the prefix find a directory of drive C by the name of a volume (\\?\Volume{GUID}\), or find nothing there. Wine looks for
// such a volume where its drives are.
func (p *Prefix) MountVolume(volume, dir string, there bool) error {
	link := filepath.Join(p.Dir, "dosdevices", strings.ToLower(strings.Trim(volume, `\?`)))
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if !there {
		return nil
	}
	if err := p.Own(p.Path(dir)); err != nil {
		return err
	}
	return os.Symlink(p.Path(dir), link)
}
