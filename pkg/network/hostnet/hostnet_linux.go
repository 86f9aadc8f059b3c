package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/iptables"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/vxlan"
	"github.com/winkube/winkube/pkg/wake"
)

type host struct {
	filter  *iptables.Filter
	macs    map[string]net.HardwareAddr // of bridges, as last seen: pods have them in their neighbor tables
	foreign map[int]bool                // interfaces on no bridge that do not lead to our pods
}

// New returns this host.
func New() network.Host {
	return &host{filter: iptables.OfHost(), macs: map[string]net.HardwareAddr{}, foreign: map[int]bool{}}
}

// Noting returns this host: on Linux there is nothing to record.
func Noting(network.ForwardingFile) network.Host { return New() }

// StopForwarding does nothing: on Linux forwarding stays enabled.
func StopForwarding(network.Forwarding) (was bool, err error) { return false, nil }

// Windows returns nil: this is not Windows.
func Windows() network.Windows { return nil }

// RemoveHNS does nothing: there is no HNS.
func RemoveHNS(string) (removed bool, err error) { return false, nil }

// Apply implements network.Host.
func (h *host) Apply(ctx context.Context, s network.State) error {
	return errors.Join(h.applyGateways(s.Gateways), h.adoptPorts(s.Gateways), applyDevices(s.Devices), h.filter.Apply(ctx, s.Rules))
}

// linkWith finds the interface that has address a.
func linkWith(a netip.Addr) (netlink.Link, error) {
	addrs, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("cannot list addresses: %w", err)
	}
	for _, have := range addrs {
		if have.IP.Equal(a.AsSlice()) {
			return netlink.LinkByIndex(have.LinkIndex)
		}
	}
	return nil, fmt.Errorf("no interface of this host has address %s", a)
}

// applyGateways gives the bridge the pods' gateway addresses. The engine created the bridge; applyGateways recreates a deleted one, since the engine
// does not notice the loss.
func (h *host) applyGateways(want []network.Gateway) error {
	var errs []error
	for _, g := range want {
		link, err := h.bridge(g.Interface)
		if err == nil {
			err = errors.Join(ignoreRouters(g.Interface), ensureAddress(link, g.Address), setUp(link))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("cannot set address %s on %s: %w", g.Address, g.Interface, err))
		}
	}
	return errors.Join(errs...)
}

func (h *host) bridge(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if err == nil {
		h.macs[name] = link.Attrs().HardwareAddr
		return link, nil
	}
	if !errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, err
	}
	klog.InfoS("The pods' bridge was deleted; recreating it", "bridge", name)
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: h.macs[name]}}
	return bridge, netlink.LinkAdd(bridge)
}

// adoptPorts reconnects the host's ends of pods' interfaces to the bridge of gateways if they are on no bridge.
func (h *host) adoptPorts(gateways []network.Gateway) error {
	if len(gateways) == 0 {
		return nil
	}
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("cannot list interfaces: %w", err)
	}
	loose, known := map[int]netlink.Link{}, map[int]bool{}
	for _, l := range links {
		switch i := l.Attrs().Index; {
		case l.Type() != "veth" || l.Attrs().MasterIndex != 0:
		case h.foreign[i]:
			known[i] = true
		default:
			loose[i] = l
		}
	}
	h.foreign = known // drops interfaces that have been on a bridge meanwhile: they may be pods'
	if len(loose) == 0 {
		return nil
	}
	if err := inNamespaces(func(handle *netlink.Handle) error { return adopt(handle, loose, gateways) }); err != nil {
		return err // the remaining ones may be pods' ports: the bridge may have been deleted meanwhile
	}
	for i := range loose {
		h.foreign[i] = true
	}
	return nil
}

// adopt searches one network namespace for interfaces with an address in the gateways' ranges whose peers are among loose, and connects those to the
// bridge.
func adopt(handle *netlink.Handle, loose map[int]netlink.Link, gateways []network.Gateway) error {
	links, err := handle.LinkList()
	if err != nil {
		return nil //nolint:nilerr // its last process has gone
	}
	for _, inside := range links {
		port, ok := loose[inside.Attrs().ParentIndex]
		if !ok || inside.Type() != "veth" || port.Attrs().ParentIndex != inside.Attrs().Index {
			continue
		}
		addrs, err := handle.AddrList(inside, netlink.FAMILY_ALL)
		i := slices.IndexFunc(gateways, func(g network.Gateway) bool {
			return slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return g.Address.Masked().Contains(prefixOf(a.IPNet).Addr()) })
		})
		if err != nil || i < 0 {
			continue
		}
		bridge, err := netlink.LinkByName(gateways[i].Interface)
		if err == nil {
			err = errors.Join(netlink.LinkSetMaster(port, bridge), setUp(port))
		}
		if err != nil {
			return fmt.Errorf("cannot reconnect a pod's interface %s to %s: %w", port.Attrs().Name, gateways[i].Interface, err)
		}
		klog.InfoS("Reconnected a pod's interface to the bridge", "interface", port.Attrs().Name, "bridge", gateways[i].Interface)
		delete(loose, port.Attrs().Index)
	}
	return nil
}

// inNamespaces calls do once for each network namespace that has a process, except our own.
func inNamespaces(do func(*netlink.Handle) error) error {
	paths, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return err
	}
	own, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("cannot identify the network namespace: %w", err)
	}
	seen := map[string]bool{own: true}
	var errs []error
	for _, p := range paths {
		name, err := os.Readlink(p)
		if err != nil || seen[name] { // the process may have ended
			continue
		}
		seen[name] = true
		ns, err := netns.GetFromPath(p)
		if err != nil {
			continue
		}
		if handle, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE); err == nil {
			errs = append(errs, do(handle))
			handle.Close()
		}
		ns.Close()
	}
	return errors.Join(errs...)
}

// ensureAddress adds an address unless it exists.
func ensureAddress(link netlink.Link, p netip.Prefix) error {
	have, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	for _, a := range have {
		if bits, _ := a.Mask.Size(); a.IP.Equal(p.Addr().AsSlice()) && bits == p.Bits() {
			return nil
		}
	}
	ipNet := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
	return netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet, Flags: unix.IFA_F_NODAD}) // no other host has this address
}

func setUp(link netlink.Link) error {
	if link.Attrs().Flags&net.FlagUp != 0 {
		return nil
	}
	return netlink.LinkSetUp(link)
}

// applyDevices creates the tunnel devices of want and removes all our other tunnel devices.
func applyDevices(want []vxlan.Device) error {
	var errs []error
	for _, four := range []bool{true, false} {
		name := vxlan.DeviceName(four)
		have, err := netlink.LinkByName(name)
		if err != nil && !errors.As(err, &netlink.LinkNotFoundError{}) {
			errs = append(errs, fmt.Errorf("cannot find interface %s: %w", name, err))
			continue
		}
		i := slices.IndexFunc(want, func(d vxlan.Device) bool { return d.Name == name })
		switch {
		case i >= 0:
			if err := ensureDevice(have, want[i]); err != nil {
				errs = append(errs, fmt.Errorf("cannot make the tunnel %s: %w", want[i], err))
			}
		case have != nil:
			if err := netlink.LinkDel(have); err != nil {
				errs = append(errs, fmt.Errorf("cannot remove interface %s: %w", name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// ensureDevice creates d, or keeps have if it matches. A difference that cannot be changed in place requires recreation.
func ensureDevice(have netlink.Link, d vxlan.Device) error {
	uplink, err := linkWith(d.Local)
	if err != nil {
		return err
	}
	want := &netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: d.Name, MTU: d.MTU, HardwareAddr: d.MAC[:]},
		VxlanId:   vxlan.VNI, VtepDevIndex: uplink.Attrs().Index, SrcAddr: d.Local.AsSlice(), Port: vxlan.Port,
	}
	if old, ok := have.(*netlink.Vxlan); have != nil && (!ok || !sameTunnel(old, want)) {
		if err := netlink.LinkDel(have); err != nil {
			return err
		}
		have = nil
	}
	if have == nil {
		if err := netlink.LinkAdd(want); err != nil {
			return err
		}
		have = want
	}
	if have.Attrs().MTU != d.MTU {
		if err := netlink.LinkSetMTU(have, d.MTU); err != nil {
			return err
		}
	}
	return errors.Join(ignoreRouters(d.Name), ensureAddress(have, d.Address), setUp(have))
}

// sameTunnel compares a device's immutable properties, and the hardware address, which others may have cached.
func sameTunnel(a, b *netlink.Vxlan) bool {
	return a.VxlanId == b.VxlanId && a.Port == b.Port && a.SrcAddr.Equal(b.SrcAddr) && a.VtepDevIndex == b.VtepDevIndex &&
		a.Learning == b.Learning && a.HardwareAddr.String() == b.HardwareAddr.String()
}

// nftablesGroup is the multicast group on which the kernel announces changes of nftables rules, including iptables-nft (NFNLGRP_NFTABLES in
// linux/netfilter/nfnetlink.h). The older xtables announce nothing.
const nftablesGroup = 7

// Watch implements network.Host: it watches interfaces, addresses and packet filter rules.
func (*host) Watch(ctx context.Context, hints wake.Signal) (wait func(), err error) {
	var group sync.WaitGroup
	for _, g := range []uint{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR} {
		if err := listen(ctx, &group, unix.NETLINK_ROUTE, g, concerns, hints); err != nil {
			return group.Wait, err
		}
	}
	return group.Wait, listen(ctx, &group, unix.NETLINK_NETFILTER, nftablesGroup, anything, hints)
}

// concerns says whether a kernel message about links and addresses concerns more than a container's own interface: those come and go with every pod,
// and no part of the plan depends on them. An unreadable message counts as relevant.
func concerns(message []byte) bool {
	messages, err := syscall.ParseNetlinkMessage(message)
	return err != nil || slices.ContainsFunc(messages, func(m syscall.NetlinkMessage) bool {
		switch m.Header.Type {
		case unix.RTM_NEWADDR, unix.RTM_DELADDR: // every interface assigns itself a link-local address (struct ifaddrmsg)
			return len(m.Data) < unix.SizeofIfAddrmsg || m.Data[3] != unix.RT_SCOPE_LINK
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			if len(m.Data) > 0 && m.Data[0] == unix.AF_BRIDGE { // a bridge port
				return false
			}
			header := unix.NlMsghdr(m.Header)
			link, err := netlink.LinkDeserialize(&header, m.Data)
			return err != nil || link.Type() != "veth"
		}
		return true
	})
}

func anything([]byte) bool { return true }

// listen sends a hint for every wanted message of one netlink group until ctx ends. group waits for its goroutine.
func listen(ctx context.Context, group *sync.WaitGroup, protocol int, multicast uint, wanted func(message []byte) bool, hints wake.Signal) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return fmt.Errorf("cannot open netlink socket %d: %w", protocol, err)
	}
	file := os.NewFile(uintptr(fd), "netlink")
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (multicast - 1)}); err != nil {
		file.Close()
		return fmt.Errorf("cannot listen on netlink socket %d: %w", protocol, err)
	}
	context.AfterFunc(ctx, func() { file.Close() }) // ends the Read below
	group.Go(func() {
		buf := make([]byte, 1<<16)
		for {
			n, err := file.Read(buf)
			if err != nil && !errors.Is(err, unix.ENOBUFS) { // after an overrun anything may have changed
				return
			}
			if err != nil || wanted(buf[:n]) {
				hints.Send()
			}
		}
	})
	return nil
}
