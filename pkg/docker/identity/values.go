package identity

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
)

// FormatUser formats the value of LabelUser as uid:gid:group,group.
func FormatUser(u *v1.LinuxContainerUser) string {
	var groups []string
	for _, gid := range u.SupplementalGroups {
		groups = append(groups, strconv.FormatInt(gid, 10))
	}
	return fmt.Sprintf("%d:%d:%s", u.UID, u.GID, strings.Join(groups, ","))
}

// ParseUser parses the output of FormatUser; nil if it is malformed.
func ParseUser(text string) *v1.LinuxContainerUser {
	var u v1.LinuxContainerUser
	var groups string
	if n, _ := fmt.Sscanf(text, "%d:%d:%s", &u.UID, &u.GID, &groups); n < 2 {
		return nil
	}
	for field := range strings.SplitSeq(groups, ",") {
		if gid, err := strconv.ParseInt(field, 10, 64); err == nil {
			u.SupplementalGroups = append(u.SupplementalGroups, gid)
		}
	}
	return &u
}

// FormatHostPorts formats hostPorts as 8080=80/TCP,10.0.0.1!53=53/UDP.
func FormatHostPorts(ports []pod.HostPort) string {
	var out []string
	for _, p := range ports {
		at := ""
		if p.IP.IsValid() {
			at = p.IP.String() + "!"
		}
		out = append(out, fmt.Sprintf("%s%d=%d/%s", at, p.Port, p.ContainerPort, p.Protocol))
	}
	return strings.Join(out, ",")
}

// ParseHostPorts parses the output of FormatHostPorts. It skips malformed entries.
func ParseHostPorts(text string) (out []pod.HostPort) {
	for _, one := range strings.Split(text, ",") {
		at, rest, has := strings.Cut(one, "!")
		if !has {
			at, rest = "", one
		}
		port, rest, _ := strings.Cut(rest, "=")
		inner, protocol, _ := strings.Cut(rest, "/")
		outer, err := strconv.ParseUint(port, 10, 16)
		to, err2 := strconv.ParseUint(inner, 10, 16)
		if err != nil || err2 != nil {
			continue
		}
		p := pod.HostPort{Port: uint16(outer), Protocol: v1.Protocol(protocol), ContainerPort: uint16(to)}
		if at != "" {
			if p.IP, err = netip.ParseAddr(at); err != nil {
				continue
			}
		}
		out = append(out, p)
	}
	return out
}
