package admit

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/node/util/sysctl"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// Reasons of rejections for what this host cannot confine, as in upstream.
const (
	ReasonSysctl   = "SysctlForbidden"
	ReasonAppArmor = "AppArmor"
)

// safeSysctls are the sysctls that affect only the pod itself, each with the first kernel version that has it per namespace (listed in the
// API's documentation of sysctls).
var safeSysctls = map[string]*version.Version{
	"kernel.shm_rmid_forced":              nil,
	"net.ipv4.ip_local_port_range":        nil,
	"net.ipv4.tcp_syncookies":             nil,
	"net.ipv4.ping_group_range":           nil,
	"net.ipv4.ip_unprivileged_port_start": nil,
	"net.ipv4.ip_local_reserved_ports":    version.MajorMinor(3, 16),
	"net.ipv4.tcp_keepalive_time":         version.MajorMinor(4, 5),
	"net.ipv4.tcp_fin_timeout":            version.MajorMinor(4, 6),
	"net.ipv4.tcp_keepalive_intvl":        version.MajorMinor(4, 5),
	"net.ipv4.tcp_keepalive_probes":       version.MajorMinor(4, 5),
	"net.ipv4.tcp_rmem":                   version.MajorMinor(4, 15),
	"net.ipv4.tcp_wmem":                   version.MajorMinor(4, 15),
}

// Sysctls are the sysctls that pods may set: the safe ones of this kernel, and those of --allowed-unsafe-sysctls.
type Sysctls struct{ names, prefixes []string }

// NewSysctls reads --allowed-unsafe-sysctls: names or prefixes with a star (kernel.msg*) of sysctls that the kernel keeps per namespace.
// kernel is this machine's version (6.1.0-18-amd64).
func NewSysctls(kernel string, unsafe []string) (Sysctls, error) {
	var out Sysctls
	running, err := version.ParseGeneric(kernel)
	for name, since := range safeSysctls {
		if since == nil || err == nil && running.AtLeast(since) {
			out.names = append(out.names, name)
		}
	}
	for _, pattern := range unsafe {
		space, name, prefix := sysctl.GetNamespace(strings.TrimSpace(pattern))
		switch {
		case space == sysctl.UnknownNamespace:
			return out, fmt.Errorf("%q is not a namespaced sysctl; want kernel.shm*, kernel.msg*, kernel.sem, fs.mqueue.* or net.*", pattern)
		case prefix:
			out.prefixes = append(out.prefixes, name)
		default:
			out.names = append(out.names, name)
		}
	}
	return out, nil
}

// refuse says why p may not set its sysctls; nil if it may.
func (s Sysctls) refuse(p *v1.Pod) *pod.Rejection {
	if p.Spec.SecurityContext == nil {
		return nil
	}
	for _, set := range p.Spec.SecurityContext.Sysctls {
		name := sysctl.NormalizeName(set.Name)
		space, _, _ := sysctl.GetNamespace(name)
		why := ""
		switch {
		case !slices.Contains(s.names, name) && !slices.ContainsFunc(s.prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) }):
			why = "not allowlisted"
		case space == sysctl.IPCNamespace && p.Spec.HostIPC, space == sysctl.NetNamespace && p.Spec.HostNetwork:
			why = fmt.Sprintf("not allowed with host %s enabled", space)
		}
		if why != "" {
			return &pod.Rejection{Reason: ReasonSysctl, Message: fmt.Sprintf("forbidden sysctl: %q %s", name, why)}
		}
	}
	return nil
}

// refuseAppArmor says why p's profiles cannot be enforced. enabled reports whether the host has AppArmor.
func refuseAppArmor(p *v1.Pod, enabled bool) *pod.Rejection {
	for _, c := range podspec.Containers(p) {
		profile := podspec.AppArmorProfile(p, c)
		if profile == nil || profile.Type == v1.AppArmorProfileTypeUnconfined {
			continue
		}
		if !enabled {
			return &pod.Rejection{Reason: ReasonAppArmor, Message: "Cannot enforce AppArmor: AppArmor is not enabled on the host"}
		}
		if profile.Type == v1.AppArmorProfileTypeLocalhost && (profile.LocalhostProfile == nil || strings.TrimSpace(*profile.LocalhostProfile) == "") {
			return &pod.Rejection{Reason: ReasonAppArmor, Message: fmt.Sprintf("Cannot enforce AppArmor: invalid empty AppArmor profile name of container %s", c.Name)}
		}
	}
	return nil
}
