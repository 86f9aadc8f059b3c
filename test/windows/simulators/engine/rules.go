package engine

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/versions"
)

// request is a create request.
type request struct {
	engine *Engine
	*container.Config
	Host *container.HostConfig
	cpus int64
}

func (q request) hyperv() bool {
	return q.Host.Isolation.IsHyperV() || q.Host.Isolation.IsDefault() && q.engine.opts.Isolation.IsHyperV()
}

// rule is one refusal of the engine at create. The name is its entry in docs/design/windows-quirks.md.
type rule struct {
	name, source string
	check        func(request) error
}

// before28 are the messages of older engines, which report decoding errors as internal errors. Source: moby runconfig/hostconfig_windows.go of
// 20.10.24 and 25.0.6; dockerd.exe 25.0.6 answers so in the rig.
var before28 = map[string]string{
	"isolation":                 `Invalid isolation: %q. Windows supports 'default', 'process', or 'hyperv'`,
	"shared network and hyperv": "Using the network stack of another container is not supported while using Hyper-V Containers",
	"real-time CPU":             "Windows does not support CPU real-time period",
	"privileged":                "Windows does not support privileged mode",
	"read-only root":            "Windows does not support root filesystem in read-only mode",
}

// worded returns a rule's refusal in the words of this engine's version.
func (q request) worded(rule string, err error) error {
	words, ok := before28[rule]
	if !ok || !versions.LessThan(q.engine.facts.docker, "28") {
		return err
	}
	if rule == "isolation" {
		return internal{fmt.Errorf(words, q.Host.Isolation)}
	}
	return internal{errors.New(words)}
}

// when returns a check that refuses with the Windows engine's message.
func when(bad func(request) bool, message string) func(request) error {
	return func(q request) error {
		if bad(q) {
			return errors.New(message)
		}
		return nil
	}
}

// unsupported returns a check of a resource that Windows names in its refusal.
func unsupported(field string, set func(container.Resources) bool) func(request) error {
	return when(func(q request) bool { return set(q.Host.Resources) }, "invalid option: Windows does not support "+field)
}

const (
	platformResources = "moby daemon/daemon_windows.go verifyPlatformContainerResources"
	runconfigWindows  = "moby runconfig/hostconfig_windows.go"
)

// rules are tried in the engine's order. The first that refuses answers 400.
var rules = []rule{
	{"isolation", runconfigWindows + " validateIsolation", func(q request) error {
		if i := q.Host.Isolation; !i.IsDefault() && !i.IsProcess() && !i.IsHyperV() {
			return fmt.Errorf("invalid isolation (%s): Windows supports 'default', 'process', or 'hyperv'", i)
		}
		return nil
	}},
	{"shared network options", "moby runconfig/hostconfig.go validateNetContainerMode", sharedNetworkOptions},
	{"shared network and hyperv", runconfigWindows + " validateNetMode", when(func(q request) bool {
		return q.Host.NetworkMode.IsContainer() && q.Host.Isolation.IsHyperV()
	}, "invalid network-mode: using the network stack of another container is not supported while using Hyper-V Containers")},
	{"shared network before 1709", "Kubernetes 1.5's page on Windows Server containers: one container per pod; the words are ours", when(func(q request) bool {
		return q.Host.NetworkMode.IsContainer() && q.engine.opts.Build < sharedNetworks
	}, "invalid network-mode: container networking is not supported on this version of Windows")},
	{"real-time CPU", runconfigWindows + " validateResources", when(func(q request) bool { return q.Host.CPURealtimePeriod != 0 },
		"invalid option: CPU real-time period is not supported for Windows containers")},
	{"privileged", runconfigWindows + " validatePrivileged", when(func(q request) bool { return q.Host.Privileged },
		"invalid option: privileged mode is not supported for Windows containers")},
	{"read-only root", runconfigWindows + " validateReadonlyRootfs", when(func(q request) bool { return q.Host.ReadonlyRootfs },
		"invalid option: read-only mode is not supported for Windows containers")},
	{"CPU shares", platformResources, when(func(q request) bool { return q.Host.CPUShares < 0 || q.Host.CPUShares > 10000 }, "range of CPUShares is from 1 to 10000")},
	{"CPU percent", platformResources, when(func(q request) bool { return q.Host.CPUPercent < 0 || q.Host.CPUPercent > 100 }, "range of CPUPercent is from 1 to 100")},
	{"CPU count", platformResources, when(func(q request) bool { return q.Host.CPUCount < 0 }, "invalid CPUCount: CPUCount cannot be negative")},
	{"CPUs and percent", platformResources, when(func(q request) bool { return q.Host.NanoCPUs > 0 && q.Host.CPUPercent > 0 }, "conflicting options: Nano CPUs and CPU Percent cannot both be set")},
	{"CPUs and shares", platformResources, when(func(q request) bool { return q.Host.NanoCPUs > 0 && q.Host.CPUShares > 0 }, "conflicting options: Nano CPUs and CPU Shares cannot both be set")},
	{"more CPUs than there are", platformResources, func(q request) error {
		if n := q.Host.NanoCPUs; n < 0 || n > q.cpus*1e9 {
			return fmt.Errorf("range of CPUs is from 0.01 to %[1]d.00, as there are only %[1]d CPUs available", q.cpus)
		}
		return nil
	}},
	{"block weight", platformResources, unsupported("BlkioWeight", func(r container.Resources) bool { return r.BlkioWeight > 0 })},
	{"block devices", platformResources, unsupported("BlkioDeviceReadBps", func(r container.Resources) bool {
		return len(r.BlkioDeviceReadBps)+len(r.BlkioDeviceReadIOps)+len(r.BlkioDeviceWriteBps)+len(r.BlkioDeviceWriteIOps)+len(r.BlkioWeightDevice) > 0
	})},
	{"cgroup parent", platformResources, unsupported("CgroupParent", func(r container.Resources) bool { return r.CgroupParent != "" })},
	{"CPU period", platformResources, unsupported("CPUPeriod", func(r container.Resources) bool { return r.CPUPeriod != 0 })},
	{"CPU set", platformResources, unsupported("CpusetCpus", func(r container.Resources) bool { return r.CpusetCpus != "" })},
	{"memory set", platformResources, unsupported("CpusetMems", func(r container.Resources) bool { return r.CpusetMems != "" })},
	{"kernel memory", platformResources + "; ignored from API 1.42 on", func(q request) error {
		if q.Host.KernelMemory == 0 || !versions.LessThan(q.engine.facts.api, "1.42") {
			return nil
		}
		return errors.New("invalid option: Windows does not support KernelMemory")
	}},
	{"memory reservation", platformResources, unsupported("MemoryReservation", func(r container.Resources) bool { return r.MemoryReservation != 0 })},
	{"swap", platformResources, unsupported("MemorySwap", func(r container.Resources) bool { return r.MemorySwap != 0 })},
	{"swappiness", platformResources + " (fixMemorySwappiness lets -1 pass)", unsupported("MemorySwappiness", func(r container.Resources) bool { return r.MemorySwappiness != nil && *r.MemorySwappiness != -1 })},
	{"OOM kill", platformResources, unsupported("OomKillDisable", func(r container.Resources) bool { return r.OomKillDisable != nil && *r.OomKillDisable })},
	{"pids limit", platformResources, unsupported("PidsLimit", func(r container.Resources) bool { return r.PidsLimit != nil && *r.PidsLimit != 0 })},
	{"ulimits", platformResources, unsupported("Ulimits", func(r container.Resources) bool { return len(r.Ulimits) != 0 })},
	{"restart policy", "moby api/types/container ValidateRestartPolicy", restartRule},
	{"log driver", "moby daemon/logger/plugin.go", logRule},
	{"capabilities", "moby oci/caps/utils.go NormalizeLegacyCapabilities, from 20.10 on: Windows has none", capabilityRule},
	{"mounts", "moby volume/mounts/windows_parser.go; single files: moby/moby#30555", mountRule},
}

func sharedNetworkOptions(q request) error {
	mode := q.Host.NetworkMode
	switch {
	case !mode.IsContainer():
		return nil
	case q.Hostname != "":
		return errors.New("conflicting options: hostname and the network mode")
	case len(q.Host.Links) > 0:
		return errors.New("conflicting options: container type network can't be used with links. This would result in undefined behavior")
	case len(q.Host.DNS) > 0:
		return errors.New("conflicting options: dns and the network mode")
	case len(q.Host.ExtraHosts) > 0:
		return errors.New("conflicting options: custom host-to-IP mapping and the network mode")
	case len(q.Host.PortBindings) > 0 || q.Host.PublishAllPorts:
		return errors.New("conflicting options: port publishing and the container type network mode")
	case len(q.ExposedPorts) > 0:
		return errors.New("conflicting options: port exposing and the container type network mode")
	}
	return nil
}

func restartRule(q request) error {
	if name := q.Host.RestartPolicy.Name; !slices.Contains([]container.RestartPolicyMode{"", "no", "always", "on-failure", "unless-stopped"}, name) {
		return fmt.Errorf("invalid restart policy: unknown policy '%s'; use one of 'no', 'always', 'on-failure', or 'unless-stopped'", name)
	}
	return nil
}

func logRule(q request) error {
	if name := q.Host.LogConfig.Type; name != "" && name != "none" && !slices.Contains(logDrivers, name) {
		return fmt.Errorf("error looking up logging plugin %s: plugin %q not found", name, name)
	}
	return nil
}

func capabilityRule(q request) error {
	if versions.LessThan(q.engine.facts.docker, "20.10") {
		return nil
	}
	for _, list := range []struct {
		field string
		names []string
	}{{"CapAdd", q.Host.CapAdd}, {"CapDrop", q.Host.CapDrop}} {
		for _, name := range list.names {
			if name = strings.ToUpper(name); name != "ALL" {
				return fmt.Errorf("invalid %s: unknown capability: %q", list.field, "CAP_"+strings.TrimPrefix(name, "CAP_"))
			}
		}
	}
	return nil
}

// portRule refuses port ranges: each binding becomes a policy, so that a port may have several.
func portRule(q request) error {
	for _, bindings := range q.Host.PortBindings {
		for _, binding := range bindings {
			if first, last, isRange := strings.Cut(binding.HostPort, "-"); isRange && first != last {
				//lint:ignore ST1005 the engine's words
				return errors.New("Windows does not support more than one host port in NAT settings")
			}
			if binding.HostIP != "" && binding.HostIP != "0.0.0.0" {
				//lint:ignore ST1005 the engine's words
				return errors.New("Windows does not support host IP addresses in NAT settings")
			}
		}
	}
	return nil
}

// startRules are accepted at create and refused at start.
var startRules = []rule{
	{"NAT ports", "moby libnetwork/drivers/windows/windows.go ConvertPortBindings", portRule},
	{"security options", "moby daemon/oci_windows.go setWindowsCredentialSpec", securityRule},
	{"host network", "moby api/types/container/hostconfig_windows.go IsHost: a name like any other", when(func(q request) bool {
		return q.Host.NetworkMode == "host"
	}, "network host not found")},
}

func securityRule(q request) error {
	for _, option := range q.Host.SecurityOpt {
		key, value, ok := strings.Cut(option, "=")
		if !ok {
			return fmt.Errorf("invalid security option: no equals sign in supplied value %s", option)
		}
		if !strings.EqualFold(key, "credentialspec") {
			return fmt.Errorf("security option not supported: %s", key)
		}
		scheme, rest, ok := strings.Cut(value, "://")
		if !ok || rest == "" || !slices.Contains([]string{"file", "registry", "raw"}, strings.ToLower(scheme)) {
			return errors.New("invalid credential spec security option - value must be prefixed by 'file://', 'registry://', or 'raw://' followed by a non-empty value")
		}
		if strings.EqualFold(scheme, "raw") && versions.LessThan(q.engine.facts.api, "1.40") { // needs 19.03: moby/moby#38777
			return errors.New("invalid credential spec security option - value must be prefixed file:// or registry:// followed by a value")
		}
		if err := q.credentialSpec(strings.ToLower(scheme), rest); err != nil {
			return err
		}
	}
	return nil
}

// credentialSpec reads a credential spec as the engine does at container start. Engines before 19.03 convert the whole option to lower case.
func (q request) credentialSpec(scheme, name string) error {
	switch scheme {
	case "file": // moby daemon/oci_windows.go readCredentialSpecFile
		if strings.Contains(name, ":") {
			return errors.New("invalid credential spec: file:// path cannot be absolute")
		}
		if _, err := os.Stat(q.engine.Path(`C:\ProgramData\docker\CredentialSpecs\` + name)); err != nil {
			return fmt.Errorf("credential spec for container %s could not be read from file %q", q.Hostname, name)
		}
	case "registry": // moby daemon/oci_windows.go readCredentialSpecRegistry
		if versions.LessThan(q.engine.facts.api, "1.40") {
			name = strings.ToLower(name)
		}
		if q.engine.opts.CredentialSpec == nil || !q.engine.opts.CredentialSpec(name) {
			return fmt.Errorf("credential spec %q for container %s as it was not found", name, q.Hostname)
		}
	}
	return nil
}

// unheeded returns the fields that the Windows engine accepts and ignores: no code in its _windows.go files reads them. A client that
// sets one does not get what it asks for.
func unheeded(h *container.HostConfig) (fields []string) {
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"PidMode", h.PidMode != ""}, {"IpcMode", h.IpcMode != ""}, {"UTSMode", h.UTSMode != ""}, {"UsernsMode", h.UsernsMode != ""},
		{"CgroupnsMode", h.CgroupnsMode != ""}, {"OomScoreAdj", h.OomScoreAdj != 0}, {"CapAdd", len(h.CapAdd) > 0}, {"CapDrop", len(h.CapDrop) > 0},
		{"Sysctls", len(h.Sysctls) > 0}, {"Tmpfs", len(h.Tmpfs) > 0}, {"GroupAdd", len(h.GroupAdd) > 0}, {"ShmSize", h.ShmSize != 0},
		{"CpuQuota", h.CPUQuota != 0}, {"MaskedPaths", h.MaskedPaths != nil}, {"ReadonlyPaths", h.ReadonlyPaths != nil}, {"Runtime", h.Runtime != ""},
	} {
		if f.set {
			fields = append(fields, f.name)
		}
	}
	return fields
}
