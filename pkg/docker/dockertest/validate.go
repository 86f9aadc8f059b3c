package dockertest

import (
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
)

var validName = regexp.MustCompile(`^/?[a-zA-Z0-9][a-zA-Z0-9_.-]+$`)

// validate returns the engine's refusal of a create request. Messages are the engine's own if users search for them.
func (e containerAPI) validate(c *container.Config, h *container.HostConfig) (status int, message string) {
	mode := h.NetworkMode
	switch {
	case mode.IsContainer() && c.Hostname != "":
		return bad("conflicting options: hostname and the network mode")
	case (mode.IsContainer() || mode == "host") && len(h.Links) > 0:
		return bad("conflicting options: container type network can't be used with links. This would result in undefined behavior")
	case mode.IsContainer() && len(h.DNS) > 0:
		return bad("conflicting options: dns and the network mode")
	case mode.IsContainer() && len(h.ExtraHosts) > 0:
		return bad("conflicting options: custom host-to-IP mapping and the network mode")
	case mode.IsContainer() && len(h.PortBindings) > 0:
		return bad("conflicting options: port publishing and the container type network mode")
	case mode.IsContainer() && len(c.ExposedPorts) > 0:
		return bad("conflicting options: port exposing and the container type network mode")
	case h.UTSMode.IsHost() && c.Hostname != "":
		return bad("conflicting options: hostname and the UTS mode")
	case mode.IsContainer() && e.lookup(mode.ConnectedContainer()) == nil:
		return http.StatusNotFound, "No such container: " + mode.ConnectedContainer()
	case h.NanoCPUs > 0 && (h.CPUQuota > 0 || h.CPUPeriod > 0):
		return bad("Conflicting options: Nano CPUs and CPU Period cannot both be set.")
	case h.NanoCPUs < 0 || h.NanoCPUs > int64(e.opts.CPUs)*1e9:
		return bad(fmt.Sprintf("Range of CPUs is from 0.01 to %d.00, as there are only %d CPUs available", e.opts.CPUs, e.opts.CPUs))
	}
	for _, addr := range h.DNS {
		if _, err := netip.ParseAddr(addr); err != nil {
			return bad("invalid DNS address: " + addr)
		}
	}
	for _, bind := range h.Binds {
		if message := e.opts.validateBind(bind); message != "" {
			return bad(message)
		}
	}
	for _, m := range h.Mounts {
		if m.Type == mount.TypeBind && e.opts.windows() && e.opts.IsFile(m.Source) {
			return bad(fileMount(m.Source))
		}
	}
	if e.opts.windows() {
		return e.opts.validateWindows(h)
	}
	return e.opts.validateLinux(c, h)
}

func bad(message string) (int, string) { return http.StatusBadRequest, message }

func fileMount(source string) string {
	return fmt.Sprintf("invalid mount config for type \"bind\": source path must be a directory: %s", source)
}

// validateBind checks the short form, source:target[:options]. Windows has colons in both paths.
func (o *Options) validateBind(bind string) string {
	if o.windows() {
		m := windowsBind.FindStringSubmatch(bind)
		if m == nil {
			return "invalid volume specification: '" + bind + "'"
		}
		if o.IsFile(m[1]) {
			return fileMount(m[1])
		}
		return ""
	}
	parts := strings.Split(bind, ":")
	if len(parts) < 2 || len(parts) > 3 || !strings.HasPrefix(parts[1], "/") || parts[1] == "/" {
		return "invalid volume specification: '" + bind + "'"
	}
	if len(parts) == 3 {
		for option := range strings.SplitSeq(parts[2], ",") {
			switch option {
			case "ro", "rw", "z", "Z", "nocopy", "rshared", "rslave", "rprivate", "shared", "slave", "private":
			default:
				return "invalid mode: " + parts[2]
			}
		}
	}
	return ""
}

var windowsBind = regexp.MustCompile(`(?i)^([a-z]:\\[^:*?"<>|]*|\\\\\.\\pipe\\[^:]+):([a-z]:\\[^:*?"<>|]+|\\\\\.\\pipe\\[^:]+)(?::(?:ro|rw))?$`)

func (o *Options) validateWindows(h *container.HostConfig) (int, string) {
	r := h.Resources
	switch {
	case h.NetworkMode.IsContainer() && o.Build < 16299:
		return bad("invalid --net: container:" + h.NetworkMode.ConnectedContainer() + " is not supported on this version of Windows")
	case h.NetworkMode == "host":
		return bad("Windows does not support host networking")
	case r.CPUPeriod != 0, r.CPUQuota != 0:
		return bad("invalid option: Windows does not support CPU period and quota")
	case r.MemorySwap != 0, r.MemoryReservation != 0:
		return bad("invalid option: Windows does not support MemorySwap and MemoryReservation")
	case h.OomScoreAdj != 0:
		return bad("invalid option: Windows does not support OomScoreAdj")
	case h.Privileged:
		return bad("invalid option: Windows does not support privileged mode")
	case h.ReadonlyRootfs && !h.Isolation.IsHyperV():
		return bad("invalid option: read-only mode is not supported with process isolation")
	case len(h.CapAdd)+len(h.CapDrop) > 0:
		return bad("invalid option: Windows does not support adding or dropping capabilities")
	case h.PidMode != "", h.IpcMode != "", h.UTSMode != "":
		return bad("invalid option: Windows does not support namespace modes")
	case r.CPUShares > 0 && r.NanoCPUs > 0:
		return bad("conflicting options: Nano CPUs and CPU Shares cannot both be set")
	}
	return 0, ""
}

func (o *Options) validateLinux(c *container.Config, h *container.HostConfig) (int, string) {
	r := h.Resources
	switch {
	case c.WorkingDir != "" && !strings.HasPrefix(c.WorkingDir, "/"):
		return bad(fmt.Sprintf("the working directory '%s' is invalid, it needs to be an absolute path", c.WorkingDir))
	case h.OomScoreAdj < -1000 || h.OomScoreAdj > 1000:
		return bad(fmt.Sprintf("Invalid value %d, range for oom score adj is [-1000, 1000]", h.OomScoreAdj))
	case r.Memory > 0 && r.Memory < 6<<20:
		return bad("Minimum memory limit allowed is 6MB")
	case r.Memory > 0 && r.MemorySwap > 0 && r.MemorySwap < r.Memory:
		return bad("Minimum memoryswap limit should be larger than memory limit, see usage")
	case r.Memory == 0 && r.MemorySwap > 0:
		return bad("You should always set the Memory limit when using Memoryswap limit, see usage")
	case r.CPUQuota > 0 && r.CPUQuota < 1000:
		return bad("CPU cfs quota can not be less than 1ms (i.e. 1000)")
	case r.CPUPeriod != 0 && (r.CPUPeriod < 1000 || r.CPUPeriod > 1_000_000):
		return bad("CPU cfs period can not be less than 1ms (i.e. 1000) or larger than 1s (i.e. 1000000)")
	case h.Isolation != "" && !h.Isolation.IsDefault():
		return bad("invalid isolation: " + string(h.Isolation))
	case h.Runtime != "" && h.Runtime != "runc" && h.Runtime != "runsc":
		return bad("Unknown runtime specified " + h.Runtime)
	case !h.IpcMode.Valid() || !h.PidMode.Valid() || !h.UTSMode.Valid():
		return bad("invalid namespace mode")
	}
	if older(o.APIVersion, "1.40") {
		for _, name := range append(append([]string{}, h.CapAdd...), h.CapDrop...) {
			if strings.HasPrefix(name, "CAP_") {
				return bad(fmt.Sprintf("Unknown capability to add: %q", name))
			}
		}
	}
	if older(o.APIVersion, "1.32") && (h.IpcMode.IsShareable() || h.IpcMode.IsPrivate()) {
		return bad("invalid IPC mode: " + string(h.IpcMode))
	}
	return 0, ""
}

// checkJoined returns what is wrong, at start, with the containers whose namespaces b joins.
func (e *Engine) checkJoined(b *box) string {
	for _, join := range []struct{ what, id string }{
		{"network", b.host.NetworkMode.ConnectedContainer()}, {"IPC", b.host.IpcMode.Container()}, {"PID", b.host.PidMode.Container()},
	} {
		if join.id == "" {
			continue
		}
		other := e.lookup(join.id)
		switch {
		case other == nil:
			return fmt.Sprintf("cannot join %s of a non existent container: No such container: %s", join.what, join.id)
		case !other.running:
			return fmt.Sprintf("cannot join %s of a non running container: %s", join.what, other.id)
		case join.what == "IPC" && !other.host.IpcMode.IsShareable() && !older(e.opts.APIVersion, "1.40"):
			return fmt.Sprintf("cannot join IPC of a non-shareable container %s", other.id)
		}
	}
	return ""
}
