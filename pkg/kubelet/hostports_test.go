package kubelet

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/proxy/proxytest"
	"github.com/winkube/winkube/pkg/report"
)

// guest is a pod that answers on 127.0.0.1, through TCP and UDP.
func guest(t *testing.T) (tcp, udp uint16) {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "tcp")
			_ = conn.Close()
		}
	}()
	packets, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { packets.Close() })
	go func() {
		buffer := make([]byte, 100)
		for {
			_, from, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = packets.WriteTo([]byte("udp"), from)
		}
	}()
	return listener.Addr().(*net.TCPAddr).AddrPort().Port(), packets.LocalAddr().(*net.UDPAddr).AddrPort().Port()
}

// hear reads what a port of the host sends; "" if nothing answers.
func hear(network string, port uint16) string {
	conn, err := net.DialTimeout(network, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port).String(), 2*time.Second)
	if err != nil {
		return ""
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Second))
	_, _ = io.WriteString(conn, "?")
	buffer := make([]byte, 10)
	n, _ := conn.Read(buffer)
	return string(buffer[:n])
}

// Real sockets: TCP and UDP, a port that another program holds, a protocol that cannot be relayed, an address that is not the node's, the
// end of the pod, and a restarted agent.
func TestHostPortsServed(t *testing.T) {
	tcp, udp := guest(t)
	events := make(chan string, 20)
	serve := func(ctx context.Context) (hostPorts, chan error) {
		h := newHostPorts(hostDoors(Config{Machine: Machine{Platform: pod.Platform{OS: "windows"}}}, nil), nil, nil, func(_, name, _, kind, _, message string) { events <- name + " " + kind + ": " + message })
		done := make(chan error, 1)
		go func() { done <- h.Run(ctx) }()
		return h, done
	}
	observed := func(name string, ports ...pod.HostPort) pod.Observed {
		return pod.Observed{Namespace: "shop", Name: name,
			Sandboxes: []pod.Sandbox{{Running: true, Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, HostPorts: ports}}}
	}
	held, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	port, conflict := proxytest.FreePort(t), held.Addr().(*net.TCPAddr).AddrPort().Port()
	web := observed("web", pod.HostPort{Port: port, Protocol: v1.ProtocolTCP, ContainerPort: tcp}, pod.HostPort{Port: port, Protocol: v1.ProtocolUDP, ContainerPort: udp})

	ctx, cancel := context.WithCancel(t.Context())
	h, done := serve(ctx)
	h.Serve("1", web)
	h.Serve("2", observed("conflict", pod.HostPort{Port: conflict, Protocol: v1.ProtocolTCP, ContainerPort: tcp}))
	h.Serve("3", observed("sctp", pod.HostPort{Port: port, Protocol: v1.ProtocolSCTP, ContainerPort: tcp}))
	h.Serve("4", observed("elsewhere", pod.HostPort{IP: netip.MustParseAddr("192.0.2.1"), Port: port, Protocol: v1.ProtocolTCP, ContainerPort: tcp}))
	said := map[string]string{}
	for len(said) < 3 {
		select {
		case e := <-events:
			name, message, _ := strings.Cut(e, " ")
			said[name] = message
		case <-time.After(patience):
			t.Fatalf("pods were told only %v", said)
		}
	}
	for name, want := range map[string]string{"conflict": "Warning: hostPort ", "sctp": "protocol SCTP cannot be relayed: want TCP or UDP", "elsewhere": "it is not an address of this node"} {
		if !strings.Contains(said[name], want) {
			t.Errorf("pod %s was told %q, want %q", name, said[name], want)
		}
	}
	both := func() string { return hear("tcp4", port) + " " + hear("udp4", port) }
	await(t, "both protocols are served", func() bool { return both() == "tcp udp" })

	cancel() // the agent dies; the next one has not received the pod from the API server
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := both(); got != " " {
		t.Errorf("without an agent the port says %q", got)
	}
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	h, done = serve(ctx)
	h.Serve("1", web)
	await(t, "the port is served again", func() bool { return both() == "tcp udp" })
	h.Serve("1", pod.Observed{})
	await(t, "nothing listens when the pod is gone", func() bool { return both() == " " })
	cancel()
	<-done
}

// TestHostDoors: hostPorts open and close with the addresses that lead to the host.
func TestHostDoors(t *testing.T) {
	tcp, _ := guest(t)
	var opened atomic.Bool
	doors := func() ([]netip.Addr, error) {
		if opened.Load() {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1")}, nil // the host does not have the second
		}
		return nil, nil
	}
	events := make(chan string, 20)
	h := newHostPorts(doors, nil, nil, func(_, name, _, _, _, message string) { events <- name + ": " + message })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	serve := func(uid types.UID, port uint16) {
		h.Serve(uid, pod.Observed{Namespace: "shop", Name: "web-" + string(uid), Sandboxes: []pod.Sandbox{{Running: true, Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")},
			HostPorts: []pod.HostPort{{Port: port, Protocol: v1.ProtocolTCP, ContainerPort: tcp}}}}})
	}
	first, second := proxytest.FreePort(t), proxytest.FreePort(t)
	serve("1", first)
	if heard := hear("tcp4", first); heard != "" {
		t.Errorf("a host without doors says %q", heard)
	}
	opened.Store(true)
	serve("2", second)
	await(t, "both pods are served", func() bool { return hear("tcp4", first)+hear("tcp4", second) == "tcptcp" })
	opened.Store(false)
	h.Serve("2", pod.Observed{})
	await(t, "the door is closed", func() bool { return hear("tcp4", first) == "" })
	cancel()
	if err := <-done; err != nil || len(events) > 0 {
		t.Errorf("%v, %d Events", err, len(events))
	}
}

// TestClusterIPsAreNoDoors: addresses that the proxy adds to an interface of the host stay the Services'.
func TestClusterIPsAreNoDoors(t *testing.T) {
	services := func() ([]*v1.Service, error) {
		return []*v1.Service{
			{Spec: v1.ServiceSpec{ClusterIPs: []string{v1.ClusterIPNone}}}, {Spec: v1.ServiceSpec{ClusterIPs: []string{"10.96.0.1", "fd00:96::1"}, ExternalIPs: []string{"192.0.2.7"}}},
		}, nil
	}
	var addrs []netip.Addr
	for _, text := range []string{"192.0.2.7", "10.96.0.1", "fd00:96::1", "fd00:96::2"} {
		addrs = append(addrs, netip.MustParseAddr(text))
	}
	if got := fmt.Sprint(withoutClusterIPs(addrs, services)); got != "[192.0.2.7 fd00:96::2]" {
		t.Errorf("doors %s", got)
	}
}

// patience limits waits that succeed on any machine, however busy.
const patience = time.Minute

// await polls until so holds: no event announces a listening socket.
func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// TestSameFronts: what of a Service hostPorts depend on.
func TestSameFronts(t *testing.T) {
	for name, change := range map[string]func(*v1.ServiceSpec) bool{
		"selector":  func(s *v1.ServiceSpec) bool { s.Selector = map[string]string{"a": "b"}; return true },
		"port":      func(s *v1.ServiceSpec) bool { s.Ports[0].Port = 81; return true },
		"node port": func(s *v1.ServiceSpec) bool { s.Ports[0].NodePort = 30001; return false },
		"protocol":  func(s *v1.ServiceSpec) bool { s.Ports[0].Protocol = v1.ProtocolSCTP; return false },
		"addresses": func(s *v1.ServiceSpec) bool { s.ClusterIPs = append(s.ClusterIPs, "fd00:96::7"); return false },
		"a port":    func(s *v1.ServiceSpec) bool { s.Ports = nil; return false },
	} {
		before := v1.ServiceSpec{ClusterIPs: []string{"10.96.0.7"}, Ports: []v1.ServicePort{{Port: 80}}}
		now := *before.DeepCopy()
		if same := change(&now); sameFronts(before, now) != same {
			t.Errorf("%s: the fronts are the same: want %v", name, same)
		}
	}
}

// TestReservedPorts: the ports that pods may not use follow the kubelet's own addresses, the network mode, and what the proxy reports at the
// time.
func TestReservedPorts(t *testing.T) {
	cfg := Config{Serving: Serving{Healthz: "127.0.0.1:1248"}}
	cfg.Server.Address = "192.0.2.7:1250"
	const defaults, flannel = "proxy 0.0.0.0:10256/TCP, proxy 127.0.0.1:10249/TCP, ", "overlay network 0.0.0.0:8472/UDP, "
	reports := report.FactsFile(filepath.Join(t.TempDir(), "facts"))
	check := func(mode network.Mode, proxy, more string) {
		t.Helper()
		var got []string
		for _, r := range reservedPorts(cfg, reports) {
			got = append(got, fmt.Sprintf("%s %s/%s", r.Holder, r.At, r.Protocol))
		}
		if want := "overlay network 0.0.0.0:4789/UDP, " + proxy + more + "kubelet 192.0.2.7:1250/TCP, kubelet 127.0.0.1:1248/TCP"; strings.Join(got, ", ") != want {
			t.Errorf("%s: %q; want %q", mode, got, want)
		}
	}
	for mode, more := range map[network.Mode]string{network.HostGateway: "", network.Overlay: "", network.Upstream: flannel, network.CNI: flannel} {
		cfg.Network.Mode = mode
		check(mode, defaults, more)
	}
	cfg.Network.Mode = network.HostGateway
	for _, facts := range []struct{ report, want string }{
		{`{"listen": ["0.0.0.0:20256", "[::1]:20249"]}`, "proxy 0.0.0.0:20256/TCP, proxy [::1]:20249/TCP, "},
		{`{"services": ["10.96.0.0/12"]}`, defaults}, // an older proxy
		{`{`, defaults},
	} {
		if err := os.WriteFile(string(reports), []byte(facts.report), 0o644); err != nil {
			t.Fatal(err)
		}
		check(network.HostGateway, facts.want, "")
	}
}

// TestSCTPNodePort: only a node port of protocol SCTP holds an SCTP port.
func TestSCTPNodePort(t *testing.T) {
	service := func(name string, ports ...v1.ServicePort) *v1.Service {
		return &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: v1.ServiceSpec{Ports: ports}}
	}
	holder := sctpNodePort(func() ([]*v1.Service, error) {
		return []*v1.Service{
			service("web", v1.ServicePort{Protocol: v1.ProtocolTCP, Port: 80, NodePort: 30080}),
			service("bus", v1.ServicePort{Protocol: v1.ProtocolTCP, Port: 9, NodePort: 30009}, v1.ServicePort{Protocol: v1.ProtocolSCTP, Port: 9, NodePort: 30010}),
		}, nil
	})
	for port, want := range map[uint16]string{30010: "shop/bus", 30009: "", 30080: "", 9: ""} {
		if got := holder(port); got != want {
			t.Errorf("port %d is held by %q, want %q", port, got, want)
		}
	}
}
