package nstest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/winkube/winkube/pkg/command"
)

// Addresses of fronts: of Taken4 and Taken6, another host of the network is the owner; Vacant4 has none.
const (
	Taken4, Taken6 = "192.0.2.9", "fd01::9"
	Vacant4        = "192.0.2.10"
)

// Neighbours are hosts of one network: the test's own, a client, and the owner of Taken4 and Taken6; and a pod behind
// the test's host. Each is a network namespace.
type Neighbours struct {
	Own, Client, Owner, Pod netns.NsHandle
	Outside                 netns.NsHandle // where the test started
}

// Within runs do in a namespace, on a thread that ends afterwards.
func Within(t *testing.T, space netns.NsHandle, do func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread is not reused
		err := netns.Set(space)
		if err == nil {
			err = do()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// IP runs lines with ip -batch.
func IP(lines string) error {
	_, err := command.New().Run(context.Background(), []byte(lines), "ip", "-batch", "-")
	return err
}

func setting(name, value string) error {
	return os.WriteFile("/proc/sys/net/"+name, []byte(value), 0o644) // of the thread's namespace
}

// NewNeighbours creates them, with the test's thread in Own.
func NewNeighbours(t *testing.T) *Neighbours {
	t.Helper()
	n := &Neighbours{}
	var err error
	if n.Outside, err = netns.Get(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Outside.Close() })
	In(t)
	for _, program := range []string{"nft", "ip"} {
		if _, err := command.New().Run(t.Context(), nil, program, "-V"); err != nil {
			t.Skipf("needs %s: %v", program, err)
		}
	}
	var wire netns.NsHandle
	if n.Own, err = netns.Get(); err != nil {
		t.Fatal(err)
	}
	for _, space := range []*netns.NsHandle{&wire, &n.Client, &n.Owner, &n.Pod} {
		if *space, err = netns.New(); err == nil {
			err = netns.Set(n.Own)
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = space.Close() })
	}
	Within(t, wire, func() error {
		if err := IP("link add br0 type bridge\nlink set br0 up"); err != nil {
			return err
		}
		for i, space := range []netns.NsHandle{n.Own, n.Client, n.Owner} {
			name := fmt.Sprintf("port%d", i)
			if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(space)}); err != nil {
				return err
			}
			if err := IP("link set " + name + " master br0\nlink set " + name + " up"); err != nil {
				return err
			}
		}
		return nil
	})
	hosts := []struct {
		space netns.NsHandle
		lines string
	}{
		{n.Own, "link del eth9\nlink set eth0 up\naddr add 192.0.2.1/24 dev eth0\naddr add fd01::1/64 dev eth0 nodad\nlink add pod0 type veth peer name pod1\n" +
			"link set pod0 up\naddr add 10.9.0.1/24 dev pod0\naddr add fd09::1/64 dev pod0 nodad"},
		{n.Client, "link set lo up\nlink set eth0 up\naddr add 192.0.2.2/24 dev eth0\naddr add fd01::2/64 dev eth0 nodad\nroute add 10.9.0.0/24 via 192.0.2.1\nroute add 10.96.0.0/12 dev eth0"},
		{n.Owner, "link set lo up\nlink set eth0 up\naddr add 192.0.2.3/24 dev eth0\naddr add 192.0.2.9/32 dev eth0\naddr add fd01::3/64 dev eth0 nodad\naddr add fd01::9/128 dev eth0 nodad\n" +
			"route add 10.9.0.0/24 via 192.0.2.1\nroute add fd09::/64 via fd01::1"},
	}
	for _, h := range hosts {
		Within(t, h.space, func() error {
			return errors.Join(setting("ipv4/conf/all/rp_filter", "1"), setting("ipv4/ip_forward", "1"), setting("ipv6/conf/all/forwarding", "1"),
				setting("ipv6/conf/all/accept_dad", "0"), setting("ipv6/conf/eth0/accept_dad", "0"), IP(h.lines),
				setting("ipv4/neigh/eth0/mcast_solicit", "1"), setting("ipv4/neigh/eth0/retrans_time_ms", "100"))
		})
	}
	link, err := netlink.LinkByName("pod1")
	if err == nil {
		err = netlink.LinkSetNsFd(link, int(n.Pod))
	}
	if err != nil {
		t.Fatal(err)
	}
	Within(t, n.Pod, func() error {
		return IP("link set lo up\nlink set pod1 up\naddr add 10.9.0.2/24 dev pod1\naddr add fd09::2/64 dev pod1 nodad\nroute add default via 10.9.0.1\nroute add default via fd09::1")
	})
	Within(t, n.Owner, func() error {
		for _, port := range []string{"80", "7"} {
			Speak(t, "owner", "0.0.0.0:"+port, "[::]:"+port)
		}
		return nil
	})
	return n
}

// Speak sends a word to every client at addresses, over TCP and UDP.
func Speak(t *testing.T, word string, addrs ...string) {
	for _, addr := range addrs {
		family := map[bool]string{true: "6", false: "4"}[addr[0] == '[']
		l, err := net.Listen("tcp"+family, addr)
		if err != nil {
			t.Error(err)
			return
		}
		at := net.UDPAddrFromAddrPort(l.Addr().(*net.TCPAddr).AddrPort())
		p, err := net.ListenUDP("udp"+family, at)
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { l.Close(); p.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte(word))
				_ = c.(*net.TCPConn).CloseWrite()
				_, _ = io.Copy(io.Discard, c) // unread data would turn the end into a reset
				_ = c.Close()
			}
		}()
		go func() {
			// The reply comes from the requested address, which the packet information contains.
			for buffer, control := make([]byte, 64), make([]byte, 256); ; {
				_, n, _, from, err := p.ReadMsgUDP(buffer, control)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				_, _, _ = p.WriteMsgUDP([]byte(word), control[:n], from)
			}
		}()
		raw, err := p.SyscallConn()
		if err == nil {
			var inner error
			err = errors.Join(raw.Control(func(fd uintptr) {
				if inner = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_RECVPKTINFO, 1); family == "4" {
					inner = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_PKTINFO, 1)
				}
			}), inner)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// Meets connects to an address from a namespace and compares the response.
func (n *Neighbours) Meets(t *testing.T, who string, space netns.NsHandle, network, addr, want string) {
	t.Helper()
	got := ""
	Within(t, space, func() error {
		got = Answers(t, network, netip.MustParseAddrPort(addr))
		return nil
	})
	if got != want {
		t.Errorf("%s at %s %s meets %q, want %q", who, network, addr, got, want)
	}
}

// Hardware returns the client's neighbour entry for an address; "": no host answered.
func (n *Neighbours) Hardware(t *testing.T, addr string) (mac string) {
	t.Helper()
	Within(t, n.Client, func() error {
		list, err := netlink.NeighList(0, netlink.FAMILY_ALL)
		for _, one := range list {
			if one.IP.String() == addr && one.State&netlink.NUD_FAILED == 0 {
				mac = one.HardwareAddr.String()
			}
		}
		return err
	})
	return mac
}

// MAC returns the hardware address of a namespace's eth0.
func (n *Neighbours) MAC(t *testing.T, space netns.NsHandle) (mac string) {
	t.Helper()
	Within(t, space, func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			mac = link.Attrs().HardwareAddr.String()
		}
		return err
	})
	return mac
}

// Balanced makes the client send the fronts' traffic to the test's host, as if a load balancer had announced the
// addresses there.
func (n *Neighbours) Balanced(t *testing.T) {
	t.Helper()
	mac := n.MAC(t, n.Own)
	Within(t, n.Client, func() error {
		var lines []string
		for _, addr := range []string{Taken4, Taken6, Vacant4} {
			lines = append(lines, fmt.Sprintf("neigh replace %s lladdr %s dev eth0 nud permanent", addr, mac))
		}
		return IP(strings.Join(lines, "\n"))
	})
}
