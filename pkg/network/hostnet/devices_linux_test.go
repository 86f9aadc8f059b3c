package hostnet

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/vxlan"
)

// bridgeName is the pods' bridge.
const bridgeName = "winkube0"

var nodeFour, nodeSix = netip.MustParseAddr("10.1.0.11"), netip.MustParseAddr("fd00:1::11")

// namespace moves the test into a separate network namespace, on a thread that is locked while the test runs.
func namespace(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making a network namespace needs root")
	}
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Set(before); err != nil {
			t.Error(err)
		}
		before.Close()
		ns.Close()
		runtime.UnlockOSThread()
	})
}

func addLink(t *testing.T, link netlink.Link, addr string) {
	t.Helper()
	a, err := netlink.ParseAddr(addr)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{netlink.LinkAdd(link), netlink.AddrAdd(link, a), netlink.LinkSetUp(link)} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// described prints the relevant properties of a device.
func described(t *testing.T, name string) string {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err.Error()
	}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	parts := []string{link.Type(), link.Attrs().HardwareAddr.String(), link.Attrs().Flags.String()}
	if v, ok := link.(*netlink.Vxlan); ok {
		parts = append(parts, v.SrcAddr.String())
	}
	for _, a := range addrs {
		parts = append(parts, a.IPNet.String())
	}
	return strings.Join(parts, " ")
}

func TestDevices(t *testing.T) {
	namespace(t)
	addLink(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "lan0", MTU: 1500}, PeerName: "lan1"}, "10.1.0.11/24")
	addLink(t, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName}}, "10.244.1.1/24")
	around, err := New().Look()
	if err != nil || around.MTU([]netip.Addr{nodeFour}) != 1500 || around.MTU([]netip.Addr{nodeSix}) != 0 {
		t.Errorf("%+v, %v", around, err)
	}
	s, err := network.Plan(network.Config{Mode: network.Overlay, Platform: pod.Platform{OS: "linux"}, NodeIPs: []netip.Addr{nodeFour}}, network.Facts{PodCIDRs: []string{"10.244.1.0/24"}, MTU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	name, system := vxlan.DeviceName(true), New().(*host)
	apply := func() {
		t.Helper()
		if err := system.applyGateways(s.Gateways); err != nil {
			t.Error(err)
		}
		if err := applyDevices(s.Devices); err != nil {
			if strings.Contains(err.Error(), "not supported") {
				t.Skipf("this kernel makes no VXLAN device: %v", err)
			}
			t.Error(err)
		}
	}
	apply()
	const want = "vxlan 0e:2a:0a:f4:01:00 up|broadcast|multicast|running 10.1.0.11 10.244.1.0/32"
	if got := described(t, name); got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	link, err := netlink.LinkByName(name)
	if err != nil || link.Attrs().MTU != 1450 || link.(*netlink.Vxlan).Learning {
		t.Errorf("%+v, %v", link, err)
	}
	index := link.Attrs().Index
	apply()
	if link, err = netlink.LinkByName(name); err != nil || link.Attrs().Index != index {
		t.Errorf("the same again recreated the device: %v", err)
	}
	addr, _ := netlink.ParseAddr("10.244.1.0/32")
	for what, damage := range map[string]func() error{
		"deleted":         func() error { return netlink.LinkDel(link) },
		"down":            func() error { return netlink.LinkSetDown(link) },
		"address removed": func() error { return netlink.AddrDel(link, addr) },
		"other MTU":       func() error { return netlink.LinkSetMTU(link, 1400) },
		"other hardware":  func() error { return netlink.LinkSetHardwareAddr(link, []byte{2, 0, 0, 0, 0, 1}) },
		"foreign device of that name": func() error {
			if err := netlink.LinkDel(link); err != nil {
				return err
			}
			return netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}})
		},
		"bridge removed": func() error {
			bridge, err := netlink.LinkByName(bridgeName)
			if err != nil {
				return err
			}
			return netlink.LinkDel(bridge)
		},
		"gateway removed": func() error {
			bridge, err := netlink.LinkByName(bridgeName)
			if err != nil {
				return err
			}
			gateway, _ := netlink.ParseAddr("10.244.1.1/24")
			return netlink.AddrDel(bridge, gateway)
		},
	} {
		if err := damage(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		apply()
		if link, err = netlink.LinkByName(name); err != nil || described(t, name) != want || link.Attrs().MTU != 1450 {
			t.Errorf("%s: %v %s", what, err, described(t, name))
		}
		if !strings.HasSuffix(described(t, bridgeName), " 10.244.1.1/24") {
			t.Errorf("%s: %s", what, described(t, bridgeName))
		}
	}
	s.Devices = nil
	apply()
	if _, err := netlink.LinkByName(name); err == nil {
		t.Error("the device stays when it is not wanted")
	}
}

// A deleted bridge is recreated with its hardware address and the pods that were on it, and with no others.
func TestBridgeComesBack(t *testing.T) {
	namespace(t)
	fixed := net.HardwareAddr{0x02, 0x42, 0x0a, 0xf4, 0x01, 0x01} // the engine sets such an address; otherwise it follows the ports
	addLink(t, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName, HardwareAddr: fixed}}, "10.244.1.1/24")
	for name, addr := range map[string]string{"ours": "10.244.1.5/24", "theirs": "10.9.9.9/24"} {
		infra, err := os.StartProcess("/bin/sleep", []string{"sleep", "60"}, // in place of the infra container
			&os.ProcAttr{Sys: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = infra.Kill()
			_, _ = infra.Wait()
		})
		port := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsPid(infra.Pid)}
		ns, err := netns.GetFromPid(infra.Pid)
		if err != nil {
			t.Fatal(err)
		}
		inside, err := netlink.NewHandleAt(ns)
		if err != nil {
			t.Fatal(err)
		}
		a, err := netlink.ParseAddr(addr)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkAdd(port); err != nil {
			t.Fatal(err)
		}
		eth0, err := inside.LinkByName("eth0")
		if err != nil {
			t.Fatal(err)
		}
		if err := inside.AddrAdd(eth0, a); err != nil {
			t.Fatal(err)
		}
	}
	system := New().(*host)
	gateways := []network.Gateway{{Interface: bridgeName, Address: netip.MustParsePrefix("10.244.1.1/24")}}
	apply := func() {
		t.Helper()
		if err := errors.Join(system.applyGateways(gateways), system.adoptPorts(gateways)); err != nil {
			t.Fatal(err)
		}
	}
	master := func(name string) string {
		t.Helper()
		port, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		bridge, err := netlink.LinkByIndex(port.Attrs().MasterIndex)
		if err != nil {
			return "none"
		}
		return bridge.Attrs().Name
	}
	for range 2 {
		apply()
		bridge, err := netlink.LinkByName(bridgeName)
		if err != nil {
			t.Fatal(err)
		}
		if mac := bridge.Attrs().HardwareAddr.String(); mac != fixed.String() {
			t.Errorf("the bridge had %s, has %s", fixed, mac)
		}
		if master("ours") != bridgeName || master("theirs") != "none" {
			t.Errorf("ours is on %s, theirs on %s", master("ours"), master("theirs"))
		}
		if err := netlink.LinkDel(bridge); err != nil {
			t.Fatal(err)
		}
		if err := system.adoptPorts(gateways); err == nil { // it was deleted just before its ports were reconnected
			t.Error("a pod's interface was put on a bridge that is not there")
		}
	}
}
