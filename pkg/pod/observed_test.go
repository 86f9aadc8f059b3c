package pod

import (
	"fmt"
	"net/netip"
	"testing"
)

// TestWith: the network's data replaces the engine's, in a copy.
func TestWith(t *testing.T) {
	engine, network := []netip.Addr{netip.MustParseAddr("172.17.0.2")}, []netip.Addr{netip.MustParseAddr("10.1.0.7")}
	ports := []HostPort{{Port: 80}}
	o := Observed{Sandboxes: []Sandbox{{ID: "box", Addresses: engine, HostPorts: ports}}, Containers: []Container{{ID: "web", Addresses: engine, HostPorts: ports}}}
	for _, test := range []struct {
		name      string
		network   Attachments
		addresses []netip.Addr
		ports     int
	}{
		{"no Attacher", nil, engine, 1},
		{"of others", Attachments{"other": {Addresses: network, MapsPorts: true}}, engine, 1},
		{"no address yet", Attachments{"box": {Waits: true}, "web": {Waits: true}}, engine, 1},
		{"addresses", Attachments{"box": {Addresses: network}, "web": {Addresses: network}}, network, 1},
		{"ports", Attachments{"box": {MapsPorts: true}, "web": {MapsPorts: true}}, engine, 0},
	} {
		got := o.With(test.network)
		for _, have := range []string{fmt.Sprint(got.Sandboxes[0].Addresses, len(got.Sandboxes[0].HostPorts)), fmt.Sprint(got.Containers[0].Addresses, len(got.Containers[0].HostPorts))} {
			if want := fmt.Sprint(test.addresses, test.ports); have != want {
				t.Errorf("%s: %s, want %s", test.name, have, want)
			}
		}
		if fmt.Sprint(o.Sandboxes[0].Addresses) != fmt.Sprint(engine) || len(o.Containers[0].HostPorts) != 1 {
			t.Fatalf("%s: the original has changed: %+v", test.name, o)
		}
	}
}
