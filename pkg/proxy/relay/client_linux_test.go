package relay

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/winkube/winkube/pkg/command"
)

// podBehind gives the test's namespace a neighbour behind pod0 with 10.9.0.2 and fd09::2, which listens at port 7 of both and, for each, tells the
// address that it was spoken to from. The client, 198.51.100.9 and fd51::9, is behind eth9.
func podBehind(t *testing.T) <-chan netip.Addr {
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
			err = netlink.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Dst: ipNet(netip.MustParsePrefix(text))})
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

func up(t *testing.T, name, addr4, addr6 string) {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	if err != nil {
		t.Fatal(err)
	}
	addForeign(t, name, addr4+"/24")
	addForeign(t, name, addr6+"/64")
}

// callers listens by TCP and UDP, answers whatever comes, and tells from where.
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

// talk asks an endpoint as a client and returns what it answers.
func talk(t *testing.T, kind int, to netip.AddrPort, client netip.Addr) string {
	t.Helper()
	fd, errno := connectSocket(kind, to, client)
	if errno != 0 {
		t.Fatalf("connect to %s as %s: %v", to, client, errno)
	}
	defer closeSocket(fd)
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	timeout := unix.NsecToTimeval(int64(5 * time.Second))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		t.Fatal(err)
	}
	if kind == unix.SOCK_DGRAM {
		if _, err := unix.Write(fd, []byte("who")); err != nil {
			t.Fatal(err)
		}
	} else {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		if n, err := unix.Poll(poll, 5000); n != 1 {
			t.Fatalf("no connection to %s as %s: %v", to, client, err)
		}
	}
	buffer := make([]byte, 64)
	n, err := unix.Read(fd, buffer)
	if err != nil {
		t.Fatalf("no answer of %s to %s: %v", to, client, err)
	}
	return string(buffer[:n])
}

// TestClientKept: an endpoint sees the client's address, and its answers come back here; with the last service that asks for it every trace goes.
func TestClientKept(t *testing.T) {
	a := ranged(t, "10.96.0.0/12")
	seen := podBehind(t)
	if !a.CanKeepClients() {
		t.Skip("sockets with a client's address are not allowed here")
	}
	a.KeepClients(true)
	set4(t, a, "10.96.0.1")
	if !a.KeepsClients() {
		t.Fatal("answers are not led back")
	}
	for _, pair := range [][2]string{{"198.51.100.9", "10.9.0.2:7"}, {"fd51::9", "[fd09::2]:7"}} {
		client, endpoint := netip.MustParseAddr(pair[0]), netip.MustParseAddrPort(pair[1])
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM} {
			if got := talk(t, kind, endpoint, client); got != "hello" {
				t.Errorf("%s as %s: %q", endpoint, client, got)
			}
			if got := <-seen; got != client {
				t.Errorf("%s saw %s; want %s", endpoint, got, client)
			}
		}
	}
	set4(t, a, "10.96.0.1") // once more, and nothing is there twice
	if got := answerTraces(t); got != "2 rules, 2 routes, marked" {
		t.Errorf("kept: %s", got)
	}
	a.KeepClients(false)
	set4(t, a, "10.96.0.1")
	if got := answerTraces(t); a.KeepsClients() || got != "0 rules, 0 routes" {
		t.Errorf("no more kept: %s", got)
	}
	a.KeepClients(true)
	set4(t, a, "10.96.0.1")
	if err := withRanges(t).Set(t.Context(), nil); err != nil { // as --cleanup does
		t.Fatal(err)
	}
	if got := answerTraces(t); got != "0 rules, 0 routes" {
		t.Errorf("cleaned up: %s", got)
	}
}

func answerTraces(t *testing.T) string {
	t.Helper()
	rules, err := netlink.RuleListFiltered(netlink.FAMILY_ALL, &netlink.Rule{Table: answerTable}, netlink.RT_FILTER_TABLE)
	if err != nil {
		t.Fatal(err)
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: answerTable}, netlink.RT_FILTER_TABLE)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%d rules, %d routes", len(rules), len(routes))
	if out, err := command.New().Run(t.Context(), nil, "nft", "list", "ruleset"); err == nil && strings.Contains(string(out), "chain answers") {
		text += ", marked"
	}
	return text
}

// TestRulesTakenAway: whoever takes rules or routes of ours away is seen, and the next Set brings them back.
func TestRulesTakenAway(t *testing.T) {
	a := ranged(t, "10.96.0.0/12")
	if !a.CanKeepClients() {
		t.Skip("sockets with a client's address are not allowed here")
	}
	hints, err := a.Changes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a.KeepClients(true)
	set4(t, a, "10.96.0.1")
	const there = "2 rules, 2 routes, marked"
	for _, taken := range []string{"nft flush ruleset", "nft delete table inet winkube-proxy", "nft flush chain inet winkube-proxy input", "ip rule del priority 119", "ip route flush table 119"} {
		if _, err := command.New().Run(t.Context(), nil, "nft", "add", "table", "inet", "another"); err != nil {
			t.Fatal(err)
		}
		for quiet := false; !quiet; { // what we have done ourselves
			select {
			case <-hints:
			case <-time.After(200 * time.Millisecond):
				quiet = true
			}
		}
		words := strings.Fields(taken)
		if _, err := command.New().Run(t.Context(), nil, words[0], words[1:]...); err != nil {
			t.Fatal(err)
		}
		select {
		case <-hints:
		case <-time.After(10 * time.Second):
			t.Errorf("%s: no hint", taken)
		}
		set4(t, a, "10.96.0.1")
		if got := answerTraces(t); got != there {
			t.Errorf("after %s: %s; want %s", taken, got, there)
		}
	}
}

// TestApart: answers pass this host only where it stands between the two.
func TestApart(t *testing.T) {
	inNamespace(t)
	podBehind(t)
	for _, test := range []struct {
		client, endpoint string
		want             bool
	}{
		{"198.51.100.9", "10.9.0.2", true},
		{"fd51::9", "fd09::2", true},
		{"10.9.0.3", "10.9.0.2", false},     // a neighbour of the endpoint, which is answered directly
		{"192.0.2.1", "10.9.0.2", false},    // this host
		{"127.0.0.1", "10.9.0.2", false},    // this host
		{"198.51.100.9", "10.9.0.1", false}, // an endpoint in the host's own network
		{"203.0.113.1", "10.9.0.2", false},  // no way to it
		{"198.51.100.9", "fd09::2", false},  // no address of that family
	} {
		if got := apart(netip.MustParseAddr(test.client), netip.MustParseAddr(test.endpoint)); got != test.want {
			t.Errorf("apart(%s, %s): %t", test.client, test.endpoint, got)
		}
	}
}
