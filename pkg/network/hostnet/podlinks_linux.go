package hostnet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/winkube/winkube/pkg/network/podlink"
)

// bridgeAlias marks a bridge that we created.
const bridgeAlias = "winkube pods"

// podLinks implements podlink.Kernel with netlink.
type podLinks struct {
	// owned checks that a namespace path belongs to a process of a container.
	owned func(path, container string) error

	mu   sync.Mutex
	macs map[string]net.HardwareAddr // of bridges, as last seen: pods have them in their neighbor tables
}

// PodLinks returns the kernel interface for pods' links that this program creates.
func PodLinks() podlink.Kernel {
	return newPodLinks(func(path, container string) error { return podlink.Owned(path, container, cgroupsOf) })
}

func newPodLinks(owned func(path, container string) error) *podLinks {
	return &podLinks{owned: owned, macs: map[string]net.HardwareAddr{}}
}

func cgroupsOf(pid int) ([]byte, error) {
	return os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
}

// Ports implements podlink.Kernel.
func (*podLinks) Ports() ([]podlink.Port, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("cannot list interfaces: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	hairpins, err := hairpins()
	if err != nil {
		return nil, err
	}
	var out []podlink.Port
	for _, l := range links {
		a := l.Attrs()
		if !isPort(l) {
			continue
		}
		out = append(out, podlink.Port{Name: a.Name, Alias: a.Alias, Index: a.Index, Bridge: names[a.MasterIndex], Up: a.Flags&net.FlagUp != 0, Hairpin: hairpins[a.Index]})
	}
	return out, nil
}

// hairpins returns the ports of all bridges that may send a frame back to where it came from, by index.
func hairpins() (map[int]bool, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfInfomsg(unix.AF_BRIDGE))
	messages, err := request.Execute(unix.NETLINK_ROUTE, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot list bridge ports: %w", err)
	}
	out := map[int]bool{}
	for _, m := range messages {
		header := nl.DeserializeIfInfomsg(m)
		attrs, err := nl.ParseRouteAttr(m[header.Len():])
		if err != nil {
			return nil, fmt.Errorf("cannot read a bridge port: %w", err)
		}
		for _, attr := range attrs {
			if attr.Attr.Type != unix.IFLA_PROTINFO|unix.NLA_F_NESTED {
				continue
			}
			settings, err := nl.ParseRouteAttr(attr.Value)
			if err != nil {
				return nil, fmt.Errorf("cannot read a bridge port: %w", err)
			}
			for _, one := range settings {
				if one.Attr.Type == nl.IFLA_BRPORT_MODE && len(one.Value) > 0 && one.Value[0] != 0 {
					out[int(header.Index)] = true
				}
			}
		}
	}
	return out, nil
}

// isPort says whether an interface is the host's end of a pod's. It checks name, kind and group, so that foreign interfaces are never removed.
func isPort(l netlink.Link) bool {
	return l.Type() == "veth" && l.Attrs().Group == podlink.Group && podlink.IsPort(l.Attrs().Name)
}

func notFound(err error) bool {
	return errors.As(err, &netlink.LinkNotFoundError{}) || errors.Is(err, unix.ENODEV)
}

// MakeBridge implements podlink.Kernel. A bridge keeps its current or last hardware address.
func (p *podLinks) MakeBridge(n podlink.Network) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	link, err := netlink.LinkByName(n.Bridge)
	if notFound(err) {
		planned := n.BridgeMAC()
		mac := p.macs[n.Bridge]
		if mac == nil {
			mac = planned[:]
		}
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: n.Bridge, HardwareAddr: mac}}
		if err = netlink.LinkAdd(bridge); err == nil {
			link, err = bridge, netlink.LinkSetAlias(bridge, bridgeAlias)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot make the pods' bridge %s: %w", n.Bridge, err)
	}
	if link.Type() != "bridge" {
		return fmt.Errorf("cannot make the pods' bridge: this host's interface %s is a %s; remove or rename it", n.Bridge, link.Type())
	}
	p.macs[n.Bridge] = link.Attrs().HardwareAddr
	for _, r := range n.Ranges {
		if r.Subnet.Addr().Is4() {
			continue
		}
		for key, value := range map[string]string{"disable_ipv6": "0", "accept_dad": "0"} {
			if err := writeSysctl("net/ipv6/conf/"+n.Bridge+"/"+key, value); err != nil {
				return fmt.Errorf("cannot prepare the pods' bridge for IPv6: %w", err)
			}
		}
	}
	return errors.Join(ignoreRouters(n.Bridge), setUp(link))
}

// RemoveBridge implements podlink.Kernel.
func (p *podLinks) RemoveBridge(name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.macs, name)
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil && !notFound(err) {
		return fmt.Errorf("cannot remove the pods' bridge %s: %w", name, err)
	}
	return nil
}

// ignoreRouters makes this host ignore router advertisements from an interface. A pod that may send raw packets could otherwise become this host's
// router (CVE-2020-10749), also where pods have no IPv6 addresses.
func ignoreRouters(name string) error {
	err := writeSysctl("net/ipv6/conf/"+name+"/accept_ra", "0")
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a kernel without IPv6
	}
	return err
}

// writeSysctl sets a sysctl of the calling thread's network namespace unless it already has the value.
func writeSysctl(key, value string) error {
	path := filepath.Join("/proc/sys", key)
	have, err := os.ReadFile(path)
	if err == nil && strings.TrimSpace(string(have)) == value {
		return nil
	}
	if err == nil {
		err = os.WriteFile(path, []byte(value), 0)
	}
	return err
}

// Do implements podlink.Kernel.
func (p *podLinks) Do(steps []podlink.Step, container, path string) error {
	inside, err := p.open(path, container)
	if err != nil {
		return err
	}
	defer inside.Close()
	handle, err := netlink.NewHandleAt(inside, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("cannot enter the network namespace %s: %w", path, err)
	}
	defer handle.Close()
	for i := 0; i < len(steps); i++ {
		last := i
		for steps[i].Do == podlink.SetSysctl && last+1 < len(steps) && steps[last+1].Do == podlink.SetSysctl {
			last++
		}
		if err := take(steps[i:last+1], handle, inside); err != nil {
			return fmt.Errorf("%s: %w", steps[i], err)
		}
		i = last
	}
	return nil
}

// open opens a container's namespace.
func (p *podLinks) open(path, container string) (netns.NsHandle, error) {
	inside, err := netns.GetFromPath(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return inside, fmt.Errorf("%w: %s", podlink.ErrGone, path)
	}
	if err != nil {
		return inside, fmt.Errorf("cannot open the network namespace %s: %w", path, err)
	}
	own, err := netns.Get()
	if err != nil {
		return inside, errors.Join(err, inside.Close())
	}
	defer own.Close()
	// The handle keeps referring to that namespace even if the PID is reused. If its process belongs to the container after the open, it did before.
	if err := p.owned(path, container); err != nil {
		return inside, errors.Join(err, inside.Close())
	}
	if inside.Equal(own) {
		return inside, errors.Join(fmt.Errorf("container %.12s has the host's network namespace", container), inside.Close())
	}
	return inside, nil
}

// take takes one step, or several consecutive sysctl steps.
func take(steps []podlink.Step, handle *netlink.Handle, inside netns.NsHandle) error {
	switch s := steps[0]; s.Do {
	case podlink.MakePair:
		return makePair(s, inside)
	case podlink.SetSysctl:
		return setSysctls(steps, inside)
	case podlink.Configure:
		link, err := netlink.LinkByName(s.Port)
		if err != nil {
			return err
		}
		if err := writeSysctl("net/ipv6/conf/"+s.Port+"/disable_ipv6", "1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return netlink.LinkSetHairpin(link, true)
	case podlink.Finish:
		link, err := netlink.LinkByName(s.Port)
		if err != nil {
			return err
		}
		return netlink.LinkSetAlias(link, s.Alias)
	default:
		return takeInside(s, handle)
	}
}

// takeInside takes a step on the pod's end.
func takeInside(s podlink.Step, handle *netlink.Handle) error {
	link, err := handle.LinkByName(podlink.Inside)
	if err != nil {
		return err
	}
	switch s.Do {
	case podlink.AddAddr:
		flags := 0
		if s.Address.Addr().Is6() {
			flags = unix.IFA_F_NODAD
		}
		return handle.AddrReplace(link, &netlink.Addr{IPNet: ipNet(s.Address), Flags: flags})
	case podlink.SetUp:
		return handle.LinkSetUp(link)
	case podlink.AddRoute:
		return handle.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(s.Destination), Gw: s.Via.AsSlice()})
	}
	return fmt.Errorf("step %q is not known", s.Do)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// makePair creates both ends, the pod's directly in its namespace.
func makePair(s podlink.Step, inside netns.NsHandle) error {
	bridge, err := netlink.LinkByName(s.Bridge)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr, attrs.Group = s.Port, s.MTU, s.Host[:], podlink.Group
	attrs.MasterIndex, attrs.Flags = bridge.Attrs().Index, net.FlagUp
	pair := &netlink.Veth{LinkAttrs: attrs, PeerName: podlink.Inside, PeerHardwareAddr: s.Pod[:], PeerNamespace: netlink.NsFd(inside)}
	if err = netlink.LinkAdd(pair); errors.Is(err, unix.EEXIST) { // left by an attempt whose interface could not be removed
		if err = remove(s.Port); err == nil {
			err = netlink.LinkAdd(pair)
		}
	}
	return err
}

// setSysctls writes sysctls from inside the namespace. A thread that cannot return to its own namespace is discarded with its goroutine.
func setSysctls(steps []podlink.Step, inside netns.NsHandle) error {
	done := make(chan error, 1)
	go func() { // awaited below
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			done <- err
			return
		}
		defer home.Close()
		if err = netns.Set(inside); err == nil {
			for _, s := range steps {
				failed := writeSysctl(s.Key, s.Value)
				if failed != nil && !(s.Optional && errors.Is(failed, fs.ErrNotExist)) {
					err = errors.Join(err, fmt.Errorf("cannot set sysctl %s=%s: %w", s.Key, s.Value, failed))
				}
			}
		}
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// Repair implements podlink.Kernel.
func (*podLinks) Repair(n podlink.Network, r podlink.Repair) error {
	if r.Remove {
		return remove(r.Port)
	}
	link, err := netlink.LinkByName(r.Port)
	if notFound(err) {
		return nil
	}
	if err == nil && r.Join {
		var bridge netlink.Link
		if bridge, err = netlink.LinkByName(n.Bridge); err == nil {
			err = netlink.LinkSetMaster(link, bridge)
		}
	}
	if err == nil && r.Up {
		err = netlink.LinkSetUp(link)
	}
	if err == nil && (r.Hairpin || r.Join) {
		err = netlink.LinkSetHairpin(link, true)
	}
	if err != nil {
		return fmt.Errorf("cannot repair the pod's interface %s: %w", r.Port, err)
	}
	return nil
}

// remove removes a pod's port, and with it the pod's end. A missing port is not an error. It refuses to remove interfaces that are not ours.
func remove(port string) error {
	link, err := netlink.LinkByName(port)
	if err == nil && !isPort(link) {
		return fmt.Errorf("this host's interface %s was not made by this program; remove or rename it", port)
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil && !notFound(err) {
		return fmt.Errorf("cannot remove the pod's interface %s: %w", port, err)
	}
	return nil
}

// Watch implements podlink.Kernel.
func (*podLinks) Watch(ctx context.Context, gone func(port string)) error {
	file, err := openLinks()
	if err != nil {
		return err
	}
	return follow(ctx, file, gone)
}

// openLinks subscribes to interface changes in the calling thread's network namespace.
func openLinks() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("cannot open a netlink socket: %w", err)
	}
	file := os.NewFile(uintptr(fd), "netlink")
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.RTNLGRP_LINK - 1)}); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot listen for interfaces: %w", err), file.Close())
	}
	return file, nil
}

// follow reads a socket of openLinks until ctx ends, and closes it.
func follow(ctx context.Context, file *os.File, gone func(port string)) error {
	closeFile := sync.OnceFunc(func() { _ = file.Close() })
	defer closeFile()
	defer context.AfterFunc(ctx, closeFile)() // ends the Read below
	buf := make([]byte, 1<<16)
	for ctx.Err() == nil {
		n, err := file.Read(buf)
		switch {
		case errors.Is(err, unix.ENOBUFS): // the next comparison finds what was missed
			continue
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("cannot read the netlink socket: %w", err)
		}
		for _, port := range gonePorts(buf[:n]) {
			gone(port)
		}
	}
	return nil
}

// gonePorts returns the pods' ports whose removal a kernel message reports. When a port leaves its bridge, the bridge sends the same message.
func gonePorts(message []byte) (out []string) {
	messages, err := syscall.ParseNetlinkMessage(message)
	if err != nil {
		return nil
	}
	for _, m := range messages {
		if m.Header.Type != unix.RTM_DELLINK || len(m.Data) == 0 || m.Data[0] == unix.AF_BRIDGE {
			continue
		}
		header := unix.NlMsghdr(m.Header)
		if link, err := netlink.LinkDeserialize(&header, m.Data); err == nil && podlink.IsPort(link.Attrs().Name) {
			out = append(out, link.Attrs().Name)
		}
	}
	return out
}

// RemovePodLinks removes every interface that PodLinks created, and the bridge if we created it. It returns the names of the removed interfaces.
func RemovePodLinks() (removed []string, err error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("cannot list interfaces: %w", err)
	}
	var errs []error
	for _, l := range links {
		ours := isPort(l) || l.Type() == "bridge" && l.Attrs().Alias == bridgeAlias
		if !ours {
			continue
		}
		if err := netlink.LinkDel(l); err != nil && !notFound(err) {
			errs = append(errs, fmt.Errorf("cannot remove interface %s: %w", l.Attrs().Name, err))
			continue
		}
		removed = append(removed, "interface "+l.Attrs().Name)
	}
	return removed, errors.Join(errs...)
}
