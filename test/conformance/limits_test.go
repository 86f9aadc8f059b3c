package main

import (
	"os"
	"strings"
	"testing"
)

// TestModeLimits: a test that a relay or the engine's hostPorts cannot pass is left out with the default mode, with a reason, and only there.
func TestModeLimits(t *testing.T) {
	const source = "[sig-network] Services should preserve source pod IP for traffic thru service cluster IP [LinuxOnly]"
	const port = "[sig-network] Networking should allow creating a Pod with an SCTP HostPort [LinuxOnly]"
	protocols, err := os.ReadFile("/proc/net/protocols")
	if err != nil {
		t.Fatal(err)
	}
	sctp := strings.Contains(string(protocols), "\nSCTP ")
	for _, c := range []struct {
		name, proxy, lacks, interfaces string
		out                            bool
	}{
		{source, "", "", "", true}, {source, "connect", "", "", false}, {source, "auto", "", "", false}, {source, "auto", "bpffs", "", true},
		{port, "", "", "", !sctp}, {port, "connect", "", "engine", !sctp}, {port, "", "", "kubelet", false},
	} {
		o := options{wide: true, sigs: []string{"sig-network"}, proxy: c.proxy, lacks: c.lacks}
		limits, err := limitsHere(o.relayed(), c.interfaces)
		if err != nil {
			t.Fatal(err)
		}
		p := pick([]string{c.name}, o, limits)
		if len(p.Cannot) == 1 != c.out || len(p.Tests) == 1 == c.out {
			t.Errorf("PROXY_MODE=%s PROXY_LACKS=%s POD_INTERFACES=%s: runs %q, leaves out %q", c.proxy, c.lacks, c.interfaces, p.Tests, p.Cannot)
		}
	}
}
