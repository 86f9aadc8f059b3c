package sim

import (
	"bytes"
	"context"
	"debug/pe"
	"embed"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/winkube/winkube/test/windows/rig"
)

//go:embed shim
var shims embed.FS

// Install compiles the shims, puts them into a prefix of the same Windows build and gives them the World's address. The rig checks that each
// override took effect; a netsh call checks that the shims reach the World. If another World used the prefix before, only the address changes.
func (w *World) Install(ctx context.Context, p *rig.Prefix, address net.Addr) error {
	if err := os.WriteFile(p.Path(`C:\winkube-sim.txt`), []byte(address.String()), 0o644); err != nil {
		return fmt.Errorf("cannot install the simulators: %w", err)
	}
	if _, err := os.Stat(filepath.Join(p.SystemDir(), builtinIPHelper)); err != nil {
		if err := w.installShims(ctx, p); err != nil {
			return err
		}
	}
	if out, err := p.Run(ctx, "netsh.exe", "interface", "portproxy", "show", "all"); err != nil || len(w.Log.Calls("run")) == 0 {
		return fmt.Errorf("cannot reach the simulators at %s: %w: %s", address, err, out)
	}
	w.Log.Reset()
	return nil
}

// builtinIPHelper is the new name of Wine's own iphlpapi.dll.
const builtinIPHelper = "iphlpreal.dll"

func (w *World) installShims(ctx context.Context, p *rig.Prefix) error {
	if err := p.KeepBuiltin("iphlpapi.dll", builtinIPHelper); err != nil {
		return fmt.Errorf("cannot install iphlpapi.dll: %w", err)
	}
	dir, err := compiled(ctx, filepath.Join(p.SystemDir(), builtinIPHelper))
	if err != nil {
		return err
	}
	var images []rig.Image
	for _, one := range binaries {
		if one.name != powershellEXE && (one.name != "computenetwork.dll" || w.HNS.V2()) { // Server 2016 does not have it
			images = append(images, rig.Image{Name: one.name, Path: filepath.Join(dir, one.name)})
		}
	}
	return p.Install(ctx, images...)
}

const powershellEXE = "powershell.exe"

// InstallPowerShell installs powershell.exe into a prefix that has the shims.
func (w *World) InstallPowerShell(ctx context.Context, p *rig.Prefix) error {
	dir, err := compiled(ctx, filepath.Join(p.SystemDir(), builtinIPHelper))
	if err != nil {
		return err
	}
	return p.InstallEXE(ctx, powershellEXE, filepath.Join(dir, powershellEXE))
}

// binaries are what is built from the shims' sources; file arguments are relative to the directory shim.
var binaries = []struct {
	name string
	args []string
}{
	{"vmcompute.dll", []string{"hns.c", "wclayer.c", "compute.c", "-DVMCOMPUTE", "-lole32"}},
	{"computenetwork.dll", []string{"hns.c", "-lole32"}},
	{"iphlpapi.dll", []string{"iphlpapi.c", "iphlpapi.def"}},
	{"pdh.dll", []string{"pdh.c"}},
	{"netsh.exe", []string{"netsh.c", "-municode"}},
	{powershellEXE, []string{"netsh.c", "-DPOWERSHELL", "-municode"}},
}

// compiled returns the directory with all binaries, which is reused between runs. wine is Wine's own iphlpapi.dll.
func compiled(ctx context.Context, wine string) (string, error) {
	recipe, err := os.ReadFile(wine)
	if err != nil {
		return "", fmt.Errorf("cannot compile the shims: %w", err)
	}
	sources, err := shims.ReadDir("shim")
	if err != nil {
		return "", fmt.Errorf("cannot compile the shims: %w", err)
	}
	for _, source := range sources {
		text, err := shims.ReadFile("shim/" + source.Name())
		if err != nil {
			return "", fmt.Errorf("cannot compile the shims: %w", err)
		}
		recipe = append(recipe, text...)
	}
	return rig.Kept("shims", fmt.Append(recipe, binaries), func(dir string) error { return compile(ctx, wine, dir) })
}

func compile(ctx context.Context, wine, dir string) error {
	if err := os.CopyFS(dir, shims); err != nil {
		return err
	}
	source := func(name string) string { return filepath.Join(dir, "shim", name) }
	if err := writeForwards(wine, source("iphlpapi.c"), source("iphlpapi.def")); err != nil {
		return err
	}
	for _, one := range binaries {
		args := []string{"-Wno-unused-function"}
		for _, arg := range one.args {
			if !strings.HasPrefix(arg, "-") {
				arg = source(arg)
			}
			args = append(args, arg)
		}
		build := rig.CompileDLL
		if strings.HasSuffix(one.name, ".exe") {
			build = rig.CompileEXE
		}
		if err := build(ctx, filepath.Join(dir, one.name), append(args, "-lws2_32")...); err != nil {
			return fmt.Errorf("cannot compile %s: %w", one.name, err)
		}
	}
	return nil
}

var ownFunction = regexp.MustCompile(`\bsim_(\w+)\(|^(?:TABLE|ROW|CONST_ROW)\((\w+),`)

// writeForwards writes the .def file of a DLL that exports the functions of source (sim_X becomes X) and forwards all others that Wine's
// exports.
func writeForwards(wine, source, to string) error {
	text, err := os.ReadFile(source)
	if err != nil {
		return err
	}
	var own []string
	for line := range strings.Lines(string(text)) {
		if match := ownFunction.FindStringSubmatch(line); match != nil {
			own = append(own, match[1]+match[2])
		}
	}
	slices.Sort(own)
	own = slices.Compact(own)
	names, err := exports(wine)
	if err != nil {
		return fmt.Errorf("cannot read the exports of %s: %w", wine, err)
	}
	lines := []string{"LIBRARY iphlpapi.dll", "EXPORTS"}
	for _, name := range own {
		lines = append(lines, "  "+name+"=sim_"+name)
	}
	for _, name := range names {
		if !slices.Contains(own, name) {
			lines = append(lines, "  "+name+"=iphlpreal."+name)
		}
	}
	return os.WriteFile(to, []byte(strings.Join(lines, "\n")+"\n"), 0o644)
}

// exports returns the names that a DLL exports (PE format, "The .edata Section").
func exports(path string) ([]string, error) {
	f, err := pe.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	header, ok := f.OptionalHeader.(*pe.OptionalHeader64)
	if !ok {
		return nil, fmt.Errorf("not a 64-bit image")
	}
	at := func(rva, size uint32) []byte {
		for _, s := range f.Sections {
			if data, err := s.Data(); err == nil && rva >= s.VirtualAddress && rva+size <= s.VirtualAddress+uint32(len(data)) {
				return data[rva-s.VirtualAddress:]
			}
		}
		return nil
	}
	directory := at(header.DataDirectory[0].VirtualAddress, 40)
	if directory == nil {
		return nil, fmt.Errorf("no export directory")
	}
	count := order.Uint32(directory[24:])
	table := at(order.Uint32(directory[32:]), 4*count)
	if table == nil {
		return nil, fmt.Errorf("no table of names")
	}
	var names []string
	for i := range count {
		name, _, ok := bytes.Cut(at(order.Uint32(table[4*i:]), 1), []byte{0})
		if !ok {
			return nil, fmt.Errorf("name %d has no end", i)
		}
		names = append(names, string(name))
	}
	return names, nil
}
