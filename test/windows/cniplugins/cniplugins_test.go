package cniplugins

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
)

// TestConfig: the page has a configuration for each plugin, and a host's ranges replace the page's.
func TestConfig(t *testing.T) {
	r := Ranges{netip.MustParsePrefix("10.200.7.0/24"), netip.MustParsePrefix("10.200.0.0/16"), netip.MustParsePrefix("10.32.0.0/16"), netip.MustParsePrefix("172.30.0.0/24"),
		netip.MustParseAddr("172.30.0.9")}
	for _, plugin := range []string{"win-bridge", "win-overlay"} {
		config, err := Config(plugin, r)
		if err != nil || !json.Valid([]byte(config)) {
			t.Fatalf("%v: %s", err, config)
		}
		for _, want := range []string{`"type": "` + plugin + `"`, `"subnet": "10.200.7.0/24"`, `"rangeStart": "10.200.7.10"`, `"DestinationPrefix": "10.32.0.0/16"`} {
			if !strings.Contains(config, want) {
				t.Errorf("%s: no %s in %s", plugin, want, config)
			}
		}
		if plugin == "win-bridge" && !strings.Contains(config, `"DestinationPrefix": "172.30.0.9/32"`) { // microsoft/SDN l2bridge start-kubelet.ps1
			t.Errorf("pods do not reach their own node: %s", config)
		}
		for _, of := range []netip.Prefix{Documented.Pods, Documented.Cluster, Documented.Services, Documented.Node} {
			if strings.Contains(config, of.Addr().String()[:6]) {
				t.Errorf("%s: the page's %s is in %s", plugin, of, config)
			}
		}
		if _, args := Network(plugin, r); !strings.Contains(args[len(args)-1], `"10.200.7.1"`) {
			t.Errorf("%s: network %q", plugin, args)
		}
	}
	if _, err := Config("bridge2", r); err == nil {
		t.Error("a configuration for a plugin that the page does not know")
	}
}
