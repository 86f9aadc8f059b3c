package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/api/types/versions"
	"github.com/docker/docker/client"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/version"
)

// Info is the engine's description of itself and its host.
type Info struct {
	Version         string // 20.10.24
	APIVersion      string // as negotiated
	OS              string // linux or windows
	OSName          string // Debian GNU/Linux 12 (bookworm)
	KernelVersion   string
	Architecture    string // as the engine says: x86_64
	Root            string // where images and containers are stored
	StorageDriver   string
	Snapshots       bool   // images and containers are in containerd's store
	Containerd      string // its socket; "" if the engine does not report it
	LoggingDriver   string
	CgroupDriver    string // cgroupfs or systemd; "" on Windows
	CgroupVersion   string // 1 or 2; "" if the engine does not report it (then it is 1) and on Windows
	Isolation       string // Windows: process or hyperv
	LiveRestore     bool
	CPUs            int
	MemoryTotal     int64 // bytes
	SecurityOptions []string
	DefaultRuntime  Runtime
	Runtimes        []string // sorted: the valid handlers of a RuntimeClass; none on Windows
}

// Runtime is the runtime of containers that name none.
type Runtime struct {
	Name    string // runc; "" on Windows
	Missing bool   // the engine cannot run its program
}

// known is the engine's last answer.
type known struct {
	Info
	recursive bool // see RecursiveReadOnly
}

// Info queries the engine. It returns an error, with the answer, if the engine runs containers of another system than Config.OS.
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
		if info.Containerd != nil {
			out.Containerd = info.Containerd.Address
		}
		out.Snapshots = slices.ContainsFunc(info.DriverStatus, func(pair [2]string) bool {
			return pair[0] == "driver-type" && strings.HasPrefix(pair[1], "io.containerd.snapshotter.")
		})
		if out.OS == "windows" {
			out.CgroupDriver, out.CgroupVersion = "", ""
		} else {
			out.DefaultRuntime = Runtime{info.DefaultRuntime, runtimeMissing(info)}
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

// runtimeMissing reports whether the engine could not ask its default runtime for its version. It asks no shim, which has a type and no path.
func runtimeMissing(info system.Info) bool {
	return info.RuncCommit.ID == "N/A" && info.Runtimes[info.DefaultRuntime].Path != ""
}

// LastInfo is the last answer to Info; its slices must not be changed. false: no answer yet.
func (e *Client) LastInfo() (Info, bool) {
	if k := e.known.Load(); k != nil {
		return k.Info, true
	}
	return Info{}, false
}

// RecursiveReadOnly says whether read-only mounts can be recursive, by the engine's last answer.
func (e *Client) RecursiveReadOnly() bool {
	k := e.known.Load()
	return k != nil && k.recursive
}

// HyperV says whether Windows containers get virtual machines by the engine's default, by its last answer.
func (e *Client) HyperV() bool {
	k := e.known.Load()
	return k != nil && k.Isolation == "hyperv"
}

// recursiveReadOnly decides by versions: the engine accepts the options since API 1.44, the kernel has mount_setattr since 5.12.
func recursiveReadOnly(info Info) bool {
	if info.OS != "linux" || versions.LessThan(info.APIVersion, "1.44") {
		return false
	}
	kernel, err := version.ParseGeneric(info.KernelVersion)
	return err == nil && kernel.AtLeast(version.MajorMinor(5, 12))
}
