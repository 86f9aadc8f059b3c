package engine

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/docker/docker/api/types"
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

// self is what the engine said of itself, and whether that still holds. The zero value knows nothing.
type self struct {
	known atomic.Pointer[known]      // nil: not queried yet
	doubt atomic.Bool                // known may no longer be right
	ping  atomic.Pointer[types.Ping] // the last answer; nil: none yet
}

// known is the engine's last answer.
type known struct {
	Info
	recursive bool      // see RecursiveReadOnly
	at        time.Time // when it was asked for
}

// infoAge is how long an answer to Info is trusted if nothing suggests that it has changed.
const infoAge = 5 * time.Minute

// Info queries the engine. It returns an error, with the answer, if the engine runs containers of another system than Config.OS.
func (e *Client) Info(ctx context.Context) (Info, error) {
	e.doubt.Store(false) // before the question, so that a doubt while it is answered stays
	var out Info
	began := e.clock.Now()
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
		e.known.Store(&known{out, recursiveReadOnly(out), began})
		return nil
	})
	if err != nil {
		e.Doubt()
		return out, err
	}
	return out, otherMode(e.host, out, e.os)
}

// Current is Info at the price of a ping, if the last answer can still be trusted. For each Info, Docker runs two programs on Linux ("runc --version" and
// "docker-init --version"); for a ping none.
func (e *Client) Current(ctx context.Context) (Info, error) {
	k := e.known.Load()
	if k == nil || e.doubt.Load() || e.clock.Since(k.at) >= infoAge {
		return e.Info(ctx)
	}
	err := e.Call(ctx, "ping the engine", func(ctx context.Context, c *client.Client) error {
		ping, err := c.Ping(ctx)
		if err == nil {
			e.answered(ping)
		}
		return err
	})
	switch {
	case err != nil:
		e.Doubt()
		return Info{}, err
	case e.doubt.Load():
		return e.Info(ctx)
	}
	return k.Info, otherMode(e.host, k.Info, e.os)
}

// Doubt makes the next Current ask the engine: its last answer to Info may no longer be right.
func (s *self) Doubt() { s.doubt.Store(true) }

// answered compares a ping with the one before: another engine may have answered it.
func (s *self) answered(ping types.Ping) {
	last := s.ping.Swap(&ping)
	if last != nil && (last.APIVersion != ping.APIVersion || last.OSType != ping.OSType) {
		s.Doubt()
	}
}

// otherMode is an error if the engine runs containers of another system than wanted; "": any.
func otherMode(host string, info Info, wanted string) error {
	if info.OS == "" || wanted == "" || info.OS == wanted {
		return nil
	}
	return fmt.Errorf("the engine at %s runs %s containers, and this kubelet needs %s containers: switch Docker to %[3]s containers", host, info.OS, wanted)
}

// runtimeMissing reports whether the engine could not ask its default runtime for its version. It asks no shim, which has a type and no path.
func runtimeMissing(info system.Info) bool {
	return info.RuncCommit.ID == "N/A" && info.Runtimes[info.DefaultRuntime].Path != ""
}

// LastInfo is the last answer to Info; its slices must not be changed. false: no answer yet.
func (s *self) LastInfo() (Info, bool) {
	if k := s.known.Load(); k != nil {
		return k.Info, true
	}
	return Info{}, false
}

// RecursiveReadOnly says whether read-only mounts can be recursive, by the engine's last answer.
func (s *self) RecursiveReadOnly() bool {
	k := s.known.Load()
	return k != nil && k.recursive
}

// HyperV says whether Windows containers get virtual machines by the engine's default, by its last answer.
func (s *self) HyperV() bool {
	k := s.known.Load()
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
