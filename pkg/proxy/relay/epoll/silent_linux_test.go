package epoll

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/nstest"
	"github.com/winkube/winkube/pkg/proxy/relay/relaytest"
)

// unanswered is a connection whose SYN gets no answer.
type unanswered struct {
	front netip.AddrPort
	fd    int
}

func dialUnanswered(t *testing.T, front netip.AddrPort) func() *net.TCPConn {
	t.Helper()
	u := sendSYN(t, front)
	u.sentAgain(t)
	return func() *net.TCPConn { return u.connected(t) }
}

func sendSYN(t *testing.T, front netip.AddrPort) unanswered {
	t.Helper()
	fd, errno := connectSocket(unix.SOCK_STREAM, front, netip.Addr{})
	if errno != 0 {
		t.Fatal(errno)
	}
	t.Cleanup(func() { closeSocket(fd) })
	return unanswered{front, fd}
}

// sentAgain waits until the kernel has retransmitted the SYN.
func (u unanswered) sentAgain(t *testing.T) {
	t.Helper()
	relaytest.Eventually(t, "the SYN is sent again", func() bool {
		info, err := unix.GetsockoptTCPInfo(u.fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil || info.State != unix.BPF_TCP_SYN_SENT {
			value, _ := unix.GetsockoptInt(u.fd, unix.SOL_SOCKET, unix.SO_ERROR)
			t.Fatalf("the connection to %s is in state %d, %v, %v; want no answer", u.front, info.State, err, unix.Errno(value))
		}
		return info.Total_retrans > 0
	})
}

// connected waits for the connection.
func (u unanswered) connected(t *testing.T) *net.TCPConn {
	t.Helper()
	poll := []unix.PollFd{{Fd: int32(u.fd), Events: unix.POLLOUT}}
	if n, err := uninterrupted(func() (int, error) { return unix.Poll(poll, 60_000) }); n != 1 {
		t.Fatalf("no connection to %s: %v", u.front, err)
	}
	fd, err := unix.Dup(u.fd)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "client")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		t.Fatalf("no connection to %s: %v", u.front, err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.TCPConn)
}

// wire counts what this namespace has sent: resets, SYN-ACKs (as accepted connections) and unreachables.
func wire(t *testing.T) string {
	t.Helper()
	var out []string
	for file, names := range map[string][]string{"snmp": {"Tcp: OutRsts", "Tcp: PassiveOpens", "Icmp: OutDestUnreachs"}, "snmp6": {"Icmp6OutDestUnreachs"}} {
		text, err := os.ReadFile("/proc/thread-self/net/" + file)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(text), "\n")
		for _, name := range names {
			value := ""
			for i, line := range lines {
				fields := strings.Fields(line)
				switch {
				case len(fields) == 2 && fields[0] == name:
					value = fields[1]
				case len(fields) > 2 && strings.HasPrefix(name, fields[0]+" ") && slices.Contains(fields, strings.Fields(name)[1]) && i+1 < len(lines):
					value = strings.Fields(lines[i+1])[slices.Index(fields, strings.Fields(name)[1])]
				}
			}
			if value == "" {
				t.Fatalf("no %s in %s", name, text)
			}
			out = append(out, name+" "+value)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// TestDropIsSilence: a front that drops sends nothing, neither for a SYN nor for a packet, whatever its kind. With its
// first endpoint it serves in place, including a client that retransmits its SYN, and connections continue when the
// endpoint is removed.
func TestDropIsSilence(t *testing.T) {
	testPlanes(t, func(t *testing.T, newPlane func(*relay.Shared) *plane) {
		n := newNeighbours(t)
		n.Balanced(t)
		tcp, udp := relaytest.TCPServer(t, relaytest.WhoAndEcho), relaytest.UDPServer(t)
		r := n.here(t, newPlane, withRanges(t, "10.96.0.0/12", "fd96::/112"))
		table := func(served bool) (out []proxy.Route) {
			for i, front := range []struct {
				kind proxy.Kind
				addr string
			}{{proxy.ClusterIP, "10.96.0.1:80"}, {proxy.ClusterIP, "[fd96::1]:80"}, {proxy.ExternalIP, nstest.Taken4 + ":80"}, {proxy.LoadBalancer, "[" + nstest.Taken6 + "]:80"}, {proxy.NodePort, "0.0.0.0:30080"}, {proxy.NodePort, "[::]:30080"}} {
				for _, protocol := range []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP} {
					one := relaytest.Route(fmt.Sprintf("s%d-%s", i, strings.ToLower(string(protocol))), front.kind, protocol, netip.MustParseAddrPort(front.addr))
					one.Drop = !served
					if served {
						one.Backends = []proxy.Endpoint{{Addr: map[v1.Protocol]netip.AddrPort{v1.ProtocolTCP: tcp, v1.ProtocolUDP: udp}[protocol]}}
					}
					out = append(out, one)
				}
			}
			return out
		}
		fronts := []string{"10.96.0.1:80", "[fd96::1]:80", nstest.Taken4 + ":80", "[" + nstest.Taken6 + "]:80", "192.0.2.1:30080", "[fd01::1]:30080"}
		for round := range 2 {
			mustServe(t, r, table(false)...)
			before := wire(t)
			var waiting []unanswered
			for _, front := range fronts {
				addr := netip.MustParseAddrPort(front)
				waiting = append(waiting, sendSYN(t, addr))
				if got := meetUDP(t, addr); got != "silence" {
					t.Errorf("round %d: at UDP %s a client meets %s", round, front, got)
				}
			}
			for _, u := range waiting {
				u.sentAgain(t)
			}
			if after := wire(t); after != before {
				t.Errorf("round %d: said on the wire: %s; before %s", round, after, before)
			}
			if round > 0 { // silent again in place
				return
			}
			mustServe(t, r, table(true)...)
			var conns []*net.TCPConn
			for i, front := range fronts {
				addr := netip.MustParseAddrPort(front)
				conn := waiting[i].connected(t)
				if who, err := relaytest.Question(conn); err != nil || who != tcp {
					t.Errorf("round %d: at %s the client that waited meets %s, %v", round, front, who, err)
				}
				conns = append(conns, conn)
				if who, err := relaytest.Ask(v1.ProtocolUDP, addr); err != nil || who != udp {
					t.Errorf("round %d: at UDP %s: %s, %v", round, front, who, err)
				}
			}
			mustServe(t, r, table(false)...)
			for i, conn := range conns {
				echo := make([]byte, 6)
				if _, err := conn.Write([]byte("still\n")); err != nil {
					t.Errorf("round %d: %s: %v", round, fronts[i], err)
				}
				for heard := ""; !strings.HasSuffix(heard, "still\n"); heard += string(echo[:1]) {
					if _, err := conn.Read(echo[:1]); err != nil {
						t.Fatalf("round %d: a connection at %s ended with its front's endpoints: %v", round, fronts[i], err)
					}
				}
				_ = conn.SetLinger(0)
				_ = conn.Close()
			}
		}
	})
}

// meetUDP returns the result of sending a packet.
func meetUDP(t *testing.T, front netip.AddrPort) string {
	t.Helper()
	c, err := net.Dial("udp", front.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(200 * time.Millisecond))
	if _, err := c.Write([]byte("who\n")); err != nil {
		return err.Error()
	}
	n, err := c.Read(make([]byte, 64))
	if os.IsTimeout(err) {
		return "silence"
	}
	return fmt.Sprintf("%d bytes, %v", n, err)
}
