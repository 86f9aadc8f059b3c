package rig

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	versionKey = `HKEY_LOCAL_MACHINE\Software\Microsoft\Windows NT\CurrentVersion`
	bootKey    = `HKEY_LOCAL_MACHINE\System\CurrentControlSet\Control\Session Manager\Memory Management\PrefetchParameters`
	dllKey     = `HKEY_CURRENT_USER\Software\Wine\DllOverrides`
)

// release holds the registry values that identify a Windows Server.
type release struct {
	product, display string
	ubr              uint32 // update build revision
}

// versions are the long-term releases. Source: Microsoft's page "Windows Server release information".
var versions = map[int]release{
	14393: {"Windows Server 2016 Datacenter", "1607", 7876},
	17763: {"Windows Server 2019 Datacenter", "1809", 7009},
	20348: {"Windows Server 2022 Datacenter", "21H2", 3328},
	26100: {"Windows Server 2025 Datacenter", "24H2", 3476},
}

// registry returns a file for regedit. The boot counter and the machine's UUID are where upstream's kubelet reads them (kubernetes
// pkg/kubelet/winstats perfcounter_nodestats_windows.go). RtlGetVersion and everything that reads the registry then answer like that Windows.
func (r release) registry(build int) string {
	text := func(name, value string) string { return fmt.Sprintf("%q=%q", name, value) }
	number := func(name string, value uint32) string { return fmt.Sprintf("%q=dword:%08x", name, value) }
	return registryHeader + section(versionKey, text("CurrentBuild", strconv.Itoa(build)), text("CurrentBuildNumber", strconv.Itoa(build)), text("CurrentVersion", "10.0"),
		number("CurrentMajorVersionNumber", 10), number("CurrentMinorVersionNumber", 0), text("ProductName", r.product), number("UBR", r.ubr),
		text("ReleaseId", r.display), text("DisplayVersion", r.display), text("InstallationType", "Server"), text("EditionID", "ServerDatacenter")) +
		section(`HKEY_LOCAL_MACHINE\System\CurrentControlSet\Control\ProductOptions`, text("ProductType", "ServerNT")) +
		section(`HKEY_LOCAL_MACHINE\System\HardwareConfig`, text("LastConfig", fmt.Sprintf("{7d1a0c1e-0000-4000-8000-%012d}", build))) +
		section(bootKey, number("BootId", 7))
}

const registryHeader = "Windows Registry Editor Version 5.00\r\n"

// section returns a key with its values in regedit's format.
func section(key string, values ...string) string {
	return fmt.Sprintf("\r\n[%s]\r\n%s\r\n", key, strings.Join(values, "\r\n"))
}

// importRegistry imports text in regedit's format.
func (p *Prefix) importRegistry(ctx context.Context, text string) error {
	file := filepath.Join(p.Dir, "import.reg")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	_, err := p.Run(ctx, `C:\windows\regedit.exe`, WindowsPath(file))
	return err
}

// SetRegistry sets a value: a string, or a uint32 for a DWORD. key begins with a root such as HKEY_LOCAL_MACHINE.
func (p *Prefix) SetRegistry(ctx context.Context, key, name string, value any) error {
	kind := "REG_SZ"
	if _, ok := value.(uint32); ok {
		kind = "REG_DWORD"
	}
	_, err := p.Run(ctx, "reg.exe", "add", key, "/v", name, "/t", kind, "/d", fmt.Sprint(value), "/f")
	return err
}

// Registry returns a value; a DWORD has the form 0x1f.
func (p *Prefix) Registry(ctx context.Context, key, name string) (string, error) {
	out, err := p.Run(ctx, "reg.exe", "query", key, "/v", name)
	if err != nil {
		return "", err
	}
	for line := range strings.SplitSeq(out, "\n") {
		fields := strings.SplitN(strings.TrimSpace(line), "    ", 3)
		if len(fields) == 3 && strings.EqualFold(fields[0], name) {
			return strings.TrimSpace(fields[2]), nil
		}
	}
	return "", fmt.Errorf("cannot find %s of %s in %q", name, key, out)
}
