package podspec

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestInterfaceSysctls(t *testing.T) {
	p := &v1.Pod{}
	if got := InterfaceSysctls(p); got != nil {
		t.Errorf("a pod without any has %v", got)
	}
	p.Spec.SecurityContext = &v1.PodSecurityContext{}
	for _, name := range []string{"net.ipv4.conf.eth0.forwarding", "net/ipv6/neigh/eth0/gc_stale_time", "net.ipv4.conf.all.forwarding", "net.core.somaxconn",
		"net.ipv4.conf.eth01.forwarding", "kernel.ipv4.conf.eth0.forwarding"} {
		p.Spec.SecurityContext.Sysctls = append(p.Spec.SecurityContext.Sysctls, v1.Sysctl{Name: name, Value: "1"})
	}
	const want = "map[net/ipv4/conf/eth0/forwarding:1 net/ipv6/neigh/eth0/gc_stale_time:1]"
	if got := fmt.Sprint(InterfaceSysctls(p)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
