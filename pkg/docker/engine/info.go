package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/docker/docker/api/types/versions"
	"github.com/docker/docker/client"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/version"
)

// Info is what the engine says of itself and its host.
type Info struct {
	Version         string // 20.10.24
	APIVersion      string // as negotiated
	OS              string // linux or windows
	OSName          string // Debian GNU/Linux 12 (bookworm)
	KernelVersion   string
	Architecture    string // as the engine says: x86_64
	Root            string // where images and containers are stored
	StorageDriver   string
	LoggingDriver   string
	CgroupDriver    string // cgroupfs or systemd; "" on Windows
	CgroupVersion   string // 1 or 2; "" where the engine does not say (then it is 1) and on Windows
	Isolation       string // Windows: process or hyperv
	LiveRestore     bool
	CPUs            int
	MemoryTotal     int64 // bytes
	SecurityOptions []string
	Runtimes        []string // sorted: what the handler of a RuntimeClass may be; none on Windows
}

// known is what the engine said of itself last.
type known struct {
	Info
	recursive bool // see RecursiveReadOnly
}

// Info asks the engine about itself. One that runs containers of another system than Config.OS is an error, with what it said.
func (e *Client) Info(ctx context.Context) (Info, error) {
	var out Info
	err := e.Call(ctx, "ask the engine about itself", func(ctx context.Context, c *client.Client) error {
		info, err := c.Info(ctx)
		if err != nil {
			return err
		}
		out = Info{
			Version: info.ServerVersion, APIVersion: c.ClientVersion(), OS: info.OSType, OSName: info.OperatingSystem, KernelVersion: info.KernelVersion,
			Architecture: info.Architecture, Root: info.DockerRootDir, StorageDriver: info.Driver, LoggingDriver: info.LoggingDriver,
			CgroupDriver: info.CgroupDriver, CgroupVersion: info.CgroupVersion, Isolation: string(info.Isolation), LiveRestore: info.LiveRestoreEnabled,
			CPUs: info.NCPU, MemoryTotal: info.MemTotal, SecurityOptions: info.SecurityOptions,
		}
		if out.OS == "windows" {
			out.CgroupDriver, out.CgroupVersion = "", ""
		} else {
			out.Runtimes = slices.DeleteFunc(slices.Sorted(maps.Keys(info.Runtimes)), func(name string) bool {
				return len(validation.IsDNS1123Label(name)) > 0 // no handler can have that name
			})
		}
		e.known.Store(&known{out, recursiveReadOnly(out)})
		return nil
	})
	if err == nil && out.OS != "" && e.os != "" && out.OS != e.os {
		err = fmt.Errorf("the engine at %s runs %s containers, and this kubelet needs %s containers: switch Docker to %[3]s containers", e.host, out.OS, e.os)
	}
	return out, err
}

// LastInfo is the last answer to Info, whose slices are not to be changed; false: there was none yet.
func (e *Client) LastInfo() (Info, bool) {
	if k := e.known.Load(); k != nil {
		return k.Info, true
	}
	return Info{}, false
}

// Root is where the engine keeps images and containers, as it said last.
func (e *Client) Root(ctx context.Context) (string, error) {
	if info, known := e.LastInfo(); known {
		return info.Root, nil
	}
	info, err := e.Info(ctx)
	return info.Root, err
}

// RecursiveReadOnly says whether read-only mounts can be made recursively so, as far as the engine has said by now.
func (e *Client) RecursiveReadOnly() bool {
	k := e.known.Load()
	return k != nil && k.recursive
}

// HyperV says whether containers of Windows get virtual machines by the engine's own default, as far as it has said by now.
func (e *Client) HyperV() bool {
	k := e.known.Load()
	return k != nil && k.Isolation == "hyperv"
}

// recursiveReadOnly decides that by versions: the engine takes the options from API 1.44 on, the kernel has mount_setattr from 5.12 on.
func recursiveReadOnly(info Info) bool {
	if info.OS != "linux" || versions.LessThan(info.APIVersion, "1.44") {
		return false
	}
	kernel, err := version.ParseGeneric(info.KernelVersion)
	return err == nil && kernel.AtLeast(version.MajorMinor(5, 12))
}
