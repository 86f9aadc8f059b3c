package hostnet

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/network/podlink"
	"github.com/winkube/winkube/pkg/vxlan"
	"github.com/winkube/winkube/pkg/wake"
)

// In a separate network namespace the kernel sends hints about changes by others, but not about containers' interfaces.
func TestWatch(t *testing.T) {
	namespace(t)
	ctx, cancel := context.WithCancel(t.Context())
	hints := wake.New()
	wait, err := New().Watch(ctx, hints)
	if err != nil {
		t.Fatal(err)
	}
	defer wait()
	defer cancel()
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "pod"}, PeerName: "peer"}
	for _, change := range []func(netlink.Link) error{netlink.LinkAdd, netlink.LinkSetUp, netlink.LinkDel} {
		if err := change(veth); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-hints:
		t.Error("a container's interface is a reason to look")
	case <-time.After(50 * time.Millisecond):
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge"}}
	if err := netlink.LinkAdd(bridge); err != nil {
		t.Fatal(err)
	}
	select {
	case <-hints:
	case <-time.After(5 * time.Second):
		t.Fatal("no hint of a new bridge")
	}
	run := command.New()
	if _, err := run.Run(ctx, []byte("*filter\n:OTHERS - [0:0]\nCOMMIT\n"), "iptables-restore"); err != nil {
		if errors.Is(err, command.ErrNotFound) {
			t.Skip("this machine has no iptables")
		}
		t.Fatal(err)
	}
	select {
	case <-hints:
	case <-time.After(5 * time.Second):
		if v, err := run.Run(ctx, nil, "iptables", "-V"); err != nil || strings.Contains(string(v), "nf_tables") {
			t.Errorf("no hint of new rules (%s, %v)", v, err)
		}
	}
}

// TestNoRouterBehindPods: this host ignores router advertisements from pods' bridges and from tunnels, whether they have addresses of IPv6 or not, and
// its ends of pods' interfaces have no IPv6.
func TestNoRouterBehindPods(t *testing.T) {
	namespace(t)
	setting := func(name, key string) string {
		t.Helper()
		value, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + name + "/" + key)
		if errors.Is(err, fs.ErrNotExist) {
			t.Skip("this kernel has no IPv6")
		}
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(value))
	}
	addLink(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lan0"}, PeerName: "lan1"}, "10.1.0.11/24")
	addLink(t, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName}}, "10.244.1.1/24")
	_ = setting(bridgeName, "accept_ra") // or skips
	gateway := []network.Gateway{{Interface: bridgeName, Address: netip.MustParsePrefix("10.244.1.1/24")}}
	own := podlink.Network{Bridge: "winkube1", MTU: 1500, Ranges: []podlink.Range{{Subnet: netip.MustParsePrefix("10.244.2.0/24"), Gateway: netip.MustParseAddr("10.244.2.1")}}}
	device := vxlan.NewDevice(netip.MustParsePrefix("10.244.1.0/24"), nodeFour, 1500)
	k := newPodLinks(func(string, string) error { return nil })
	for range 2 { // the second time everything exists, and another program has changed it
		if err := errors.Join(New().(*host).applyGateways(gateway), k.MakeBridge(own)); err != nil {
			t.Fatal(err)
		}
		names := []string{bridgeName, own.Bridge}
		if err := applyDevices([]vxlan.Device{device}); err == nil {
			names = append(names, device.Name)
		} else if !strings.Contains(err.Error(), "not supported") {
			t.Fatal(err)
		}
		for _, name := range names {
			if got := setting(name, "accept_ra"); got != "0" {
				t.Errorf("%s has accept_ra %s, want 0", name, got)
			}
			if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/accept_ra", []byte("2"), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	l := podlink.New(k)
	l.Use(own, podlink.Others{})
	if err := l.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	box := container(t, "a")
	if _, err := l.Add(t.Context(), box.Attachment); err != nil {
		t.Fatal(err)
	}
	if got := setting(podlink.PortName(box.ContainerID), "disable_ipv6"); got != "1" {
		t.Errorf("the host's end of a pod's interface has disable_ipv6 %s, want 1", got)
	}
}
