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
		name, proxy, interfaces string
		out                     bool
	}{
		{source, "", "", true}, {source, "connect", "", false}, {source, "auto", "", false},
		{port, "", "", !sctp}, {port, "connect", "engine", !sctp}, {port, "", "kubelet", false},
	} {
		limits, err := limitsHere(c.proxy, c.interfaces)
		if err != nil {
			t.Fatal(err)
		}
		p := pick([]string{c.name}, options{wide: true, sigs: []string{"sig-network"}, proxy: c.proxy}, limits)
		if len(p.Cannot) == 1 != c.out || len(p.Tests) == 1 == c.out {
			t.Errorf("PROXY_MODE=%s POD_INTERFACES=%s: runs %q, leaves out %q", c.proxy, c.interfaces, p.Tests, p.Cannot)
		}
	}
}
