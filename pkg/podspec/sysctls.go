package podspec

import (
	"strings"

	v1 "k8s.io/api/core/v1"
)

// podInterface is the name of a pod's network interface.
const podInterface = "eth0"

// IsInterfaceSysctl reports whether a pod's sysctl belongs to its network interface and exists only with it: net.ipv4.conf.eth0.forwarding,
// net/ipv6/neigh/eth0/gc_stale_time.
func IsInterfaceSysctl(name string) bool {
	parts := strings.Split(strings.ReplaceAll(name, "/", "."), ".")
	return len(parts) == 5 && parts[0] == "net" && (parts[2] == "conf" || parts[2] == "neigh") && parts[3] == podInterface
}

// InterfaceSysctls are the pod's sysctls for its network interface, by their path below /proc/sys.
func InterfaceSysctls(p *v1.Pod) map[string]string {
	if p.Spec.SecurityContext == nil {
		return nil
	}
	var out map[string]string
	for _, s := range p.Spec.SecurityContext.Sysctls {
		if !IsInterfaceSysctl(s.Name) {
			continue
		}
		if out == nil {
			out = map[string]string{}
		}
		out[strings.ReplaceAll(s.Name, ".", "/")] = s.Value
	}
	return out
}
