package nstest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/winkube/winkube/pkg/command"
)

// In moves the test's goroutine into a new network namespace with an interface eth9 that has 192.0.2.1 and fd01::1.
func In(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	space, err := netns.New()
	if err != nil {
		runtime.UnlockOSThread()
		t.Skipf("cannot make a network namespace here: %v", err)
	}
	t.Cleanup(func() {
		_ = space.Close()
		if err := netns.Set(before); err == nil { // otherwise the thread ends with its goroutine
			runtime.UnlockOSThread()
		}
		_ = before.Close()
	})
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth9"}, PeerName: "peer9"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lo", "peer9", "eth9"} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(link); err != nil {
			t.Fatal(err)
		}
	}
	AddForeign(t, "eth9", "192.0.2.1/24")
	AddForeign(t, "eth9", "fd01::1/64")
}

// AddForeign adds an address as another program would.
func AddForeign(t *testing.T, name, text string) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netlink.ParseAddr(text)
	if err != nil {
		t.Fatal(err)
	}
	addr.Flags = unix.IFA_F_NODAD // no duplicate address detection
	if err := netlink.AddrAdd(link, addr); err != nil {
		t.Fatal(err)
	}
}

// Held lists the addresses of an interface without link-local ones; "none" if the interface does not exist.
func Held(t *testing.T, name string) string {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		return "none"
	}
	have, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, addr := range have {
		if !addr.IP.IsLinkLocalUnicast() {
			out = append(out, addr.IP.String())
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// Addrs parses and sorts addresses.
func Addrs(texts ...string) (out []netip.Addr) {
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

func up(t *testing.T, name, addr4, addr6 string) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		t.Fatal(err)
	}
	AddForeign(t, name, addr4+"/24")
	AddForeign(t, name, addr6+"/64")
}

// callers listens on TCP and UDP, answers everything, and reports the source addresses.
func callers(t *testing.T, listen ...string) <-chan netip.Addr {
	t.Helper()
	seen := make(chan netip.Addr, 8)
	for _, addr := range listen {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		p, err := net.ListenPacket("udp", addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close(); p.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				seen <- c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()
				_, _ = c.Write([]byte("hello"))
				_ = c.Close()
			}
		}()
		go func() {
			for buffer := make([]byte, 64); ; {
				_, from, err := p.ReadFrom(buffer)
				if err != nil {
					return
				}
				seen <- from.(*net.UDPAddr).AddrPort().Addr()
				_, _ = p.WriteTo([]byte("hello"), from)
			}
		}()
	}
	return seen
}

// PodBehind adds a neighbour behind pod0 with 10.9.0.2 and fd09::2 to the test's namespace. It listens at port 7 of
// both, and PodBehind reports the source address of each request. The client, 198.51.100.9 and fd51::9, is behind eth9.
func PodBehind(t *testing.T) <-chan netip.Addr {
	t.Helper()
	here, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	pod, err := netns.New()
	if err == nil {
		err = netns.Set(here)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { here.Close(); pod.Close() })
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "pod0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(pod)}); err != nil {
		t.Fatal(err)
	}
	up(t, "pod0", "10.9.0.1", "fd09::1")
	for _, text := range []string{"198.51.100.0/24", "fd51::/64"} {
		eth, err := netlink.LinkByName("eth9")
		if err == nil {
			err = netlink.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Dst: IPNet(netip.MustParsePrefix(text))})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := netns.Set(pod); err != nil {
		t.Fatal(err)
	}
	defer netns.Set(here)
	up(t, "eth0", "10.9.0.2", "fd09::2")
	for _, gateway := range []string{"10.9.0.1", "fd09::1"} {
		if err := netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(gateway)}); err != nil {
			t.Fatal(err)
		}
	}
	return callers(t, "10.9.0.2:7", "[fd09::2]:7")
}

// AnswerTraces returns the rules and routes that lead replies to clients here.
func AnswerTraces(t *testing.T) string {
	t.Helper()
	rules, err := netlink.RuleListFiltered(netlink.FAMILY_ALL, &netlink.Rule{Table: 119}, netlink.RT_FILTER_TABLE)
	if err != nil {
		t.Fatal(err)
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: 119}, netlink.RT_FILTER_TABLE)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%d rules, %d routes", len(rules), len(routes))
	if out, err := command.New().Run(t.Context(), nil, "nft", "list", "ruleset"); err == nil && strings.Contains(string(out), "chain answers") {
		text += ", marked"
	}
	return text
}

// Wildcards listens at port 7 of every address of both families, TCP and UDP.
func Wildcards(t *testing.T) {
	t.Helper()
	for _, addr := range []string{"0.0.0.0:7", "[::]:7"} {
		network := map[bool]string{true: "4", false: "6"}[addr[0] == '0']
		l, err := net.Listen("tcp"+network, addr)
		if err != nil {
			t.Fatal(err)
		}
		p, err := net.ListenPacket("udp"+network, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close(); p.Close() })
		go func() {
			for buffer := make([]byte, 64); ; {
				_, from, err := p.ReadFrom(buffer)
				if err != nil {
					return
				}
				_, _ = p.WriteTo([]byte("wildcard"), from)
			}
		}()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte("wildcard"))
				_ = c.Close()
			}
		}()
	}
}

// Answers returns the response at an address, or "refused".
func Answers(t *testing.T, network string, addr netip.AddrPort) string {
	t.Helper()
	c, err := net.DialTimeout(network, addr.String(), time.Minute)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) {
			return "refused"
		}
		return err.Error()
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err = c.Write([]byte("who")); err == nil && network == "tcp" {
		_ = c.(*net.TCPConn).CloseWrite()
	}
	buffer := make([]byte, 64)
	n, err := c.Read(buffer)
	if err != nil && err != io.EOF {
		if errors.Is(err, syscall.ECONNREFUSED) {
			return "refused"
		}
		return err.Error()
	}
	return string(buffer[:n])
}

// AnswersAt returns the responses at port 7 of an address, over TCP and UDP.
func AnswersAt(t *testing.T, addr string) string {
	at := netip.AddrPortFrom(netip.MustParseAddr(addr), 7)
	return Answers(t, "tcp", at) + ", " + Answers(t, "udp", at)
}

// PortTraces returns the rules and routes for single ports: those of protocol 119, from priority 120 on and in separate
// tables.
func PortTraces(t *testing.T) string {
	t.Helper()
	var out []string
	for number, family := range map[int]int{4: netlink.FAMILY_V4, 6: netlink.FAMILY_V6} {
		rules, err := netlink.RuleList(family)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rules {
			if r.Protocol != 0x77 || r.Priority < 120 || r.Priority > 123 {
				continue
			}
			text := fmt.Sprintf("%d:%d", number, r.Priority)
			if r.IPProto != 0 {
				text += fmt.Sprintf(" ipproto %s dport %d", map[int]string{6: "tcp", 17: "udp"}[r.IPProto], r.Dport.Start)
			}
			if r.Dst != nil {
				text += " to " + r.Dst.String()
			}
			if r.Table != 0 {
				text += fmt.Sprintf(" lookup %d", r.Table)
			}
			if r.Goto > 0 {
				text += fmt.Sprintf(" goto %d", r.Goto)
			}
			out = append(out, text)
		}
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC, Protocol: 0x77}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		if r.Table > 1_190_000_000 {
			out = append(out, fmt.Sprintf("%s in %d from %s", r.Dst.IP, r.Table, r.Src))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// Drain discards the hints about earlier changes.
func Drain(t *testing.T, hints <-chan struct{}) {
	t.Helper()
	for quiet := false; !quiet; {
		select {
		case <-hints:
		case <-time.After(200 * time.Millisecond):
			quiet = true
		}
	}
}

// IPNet converts a prefix for netlink.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
