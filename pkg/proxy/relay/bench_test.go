package relay

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/proxytest"
)

// The benchmarks run each traffic three ways in one process: to the endpoint itself, through io.Copy twins (the naive relay of twenty
// lines), and through the Relay. Only their ratios mean something.
func benchmarkWays(b *testing.B, endpoint netip.AddrPort, run func(b *testing.B, front netip.AddrPort)) {
	b.Run("direct", func(b *testing.B) { run(b, endpoint) })
	b.Run("twins", func(b *testing.B) { run(b, twins(b, endpoint)) })
	b.Run("relay", func(b *testing.B) {
		r := New(Config{Addresses: proxytest.NewAddresses(), Clock: clock.RealClock{}})
		b.Cleanup(r.Close)
		front := netip.MustParseAddrPort("127.77.77.1:18080")
		table := &proxy.Table{Routes: []proxy.Route{{Kind: proxy.ClusterIP, Protocol: v1.ProtocolTCP, Front: front, Backends: []proxy.Endpoint{{Addr: endpoint}}}}}
		if err := r.Sync(b.Context(), table, nil); err != nil {
			b.Fatal(err)
		}
		run(b, front)
	})
}

func twins(b *testing.B, endpoint netip.AddrPort) netip.AddrPort {
	return tcpServer(b, func(client *net.TCPConn) {
		server, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(endpoint))
		if err != nil {
			return
		}
		var wait sync.WaitGroup
		wait.Go(func() { _, _ = io.Copy(server, client); _ = server.CloseWrite() })
		_, _ = io.Copy(client, server)
		_ = client.CloseWrite()
		wait.Wait()
		_ = server.Close()
	})
}

func dialBench(b *testing.B, front netip.AddrPort) *net.TCPConn {
	conn, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(front))
	if err != nil {
		b.Error(err)
		b.FailNow()
	}
	return conn
}

func BenchmarkBulk(b *testing.B) {
	chunk := make([]byte, 128<<10)
	source := tcpServer(b, func(c *net.TCPConn) {
		for {
			if _, err := c.Write(chunk); err != nil {
				return
			}
		}
	})
	benchmarkWays(b, source, func(b *testing.B, front netip.AddrPort) {
		conn := dialBench(b, front)
		defer conn.Close()
		buffer := make([]byte, 1<<20)
		b.SetBytes(int64(len(buffer)))
		for b.Loop() {
			if _, err := io.ReadFull(conn, buffer); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkRequests is keep-alive traffic: 256 bytes there, 1 KiB back, 32 connections.
func BenchmarkRequests(b *testing.B) {
	answer := make([]byte, 1024)
	server := tcpServer(b, func(c *net.TCPConn) {
		r := bufio.NewReader(c)
		question := make([]byte, 256)
		for {
			if _, err := io.ReadFull(r, question); err != nil {
				return
			}
			if _, err := c.Write(answer); err != nil {
				return
			}
		}
	})
	benchmarkWays(b, server, func(b *testing.B, front netip.AddrPort) {
		b.SetParallelism(16)
		b.RunParallel(func(pb *testing.PB) {
			conn := dialBench(b, front)
			defer conn.Close()
			question, got := make([]byte, 256), make([]byte, 1024)
			for pb.Next() {
				if _, err := conn.Write(question); err != nil {
					b.Error(err)
					return
				}
				if _, err := io.ReadFull(conn, got); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

// BenchmarkConnections opens a connection, asks once, and closes it.
func BenchmarkConnections(b *testing.B) {
	server := tcpServer(b, func(c *net.TCPConn) {
		one := make([]byte, 64)
		if n, err := c.Read(one); err == nil {
			_, _ = c.Write(one[:n])
		}
		_, _ = c.Read(one) // the client ends first and keeps TIME_WAIT
	})
	benchmarkWays(b, server, func(b *testing.B, front netip.AddrPort) {
		b.SetParallelism(16)
		b.RunParallel(func(pb *testing.PB) {
			one := make([]byte, 64)
			for pb.Next() {
				conn := dialBench(b, front)
				_ = conn.SetLinger(0) // leaves no TIME_WAIT to exhaust this machine's ports
				if _, err := conn.Write(one); err != nil {
					b.Error(err)
				}
				if _, err := io.ReadFull(conn, one); err != nil {
					b.Error(err)
				}
				_ = conn.Close()
			}
		})
	})
}

// BenchmarkSync is one endpoint's change among many services, with the sockets that it means.
func BenchmarkSync(b *testing.B) {
	for _, n := range []int{100, 4000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := New(Config{Addresses: proxytest.NewAddresses(), Clock: clock.RealClock{}, UDPIdle: time.Second})
			b.Cleanup(r.Close)
			table := &proxy.Table{}
			for i := range n {
				table.Routes = append(table.Routes, proxy.Route{Service: proxy.ServicePortName{ServiceName: proxy.ServiceName{Namespace: "a", Name: fmt.Sprintf("s%05d", i)}},
					Kind: proxy.ClusterIP, Protocol: v1.ProtocolTCP, Front: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 66, byte(i / 250), byte(i%250 + 1)}), 18081),
					Backends: []proxy.Endpoint{{Addr: netip.MustParseAddrPort("127.0.0.1:1")}}})
			}
			start := time.Now()
			if err := r.Sync(b.Context(), table, nil); err != nil {
				b.Fatal(err)
			}
			cold := time.Since(start)
			i := 0
			for b.Loop() {
				i++
				changed := &table.Routes[7]
				changed.Backends = []proxy.Endpoint{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(2+i%2))}}
				if err := r.Sync(b.Context(), table, []proxy.ServiceName{changed.Service.ServiceName}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(cold.Milliseconds()), "cold-ms")
		})
	}
}

// BenchmarkLedger is what the limits cost a connection: it enters, gets an endpoint, is established and leaves, beside 1,000 others.
func BenchmarkLedger(b *testing.B) {
	cfg := &Config{Clock: clock.RealClock{}}
	l := newLedger(cfg)
	l.resize(capacity{files: 1 << 20, ports: 28232})
	f := &front{cfg: cfg, protocol: v1.ProtocolTCP}
	f.tab = newTab(f)
	endpoint := netip.MustParseAddrPort("10.0.0.1:80")
	visit := func(client netip.Addr, m *member) {
		_, in := l.enter(f, client, m)
		_, led := l.lead(f, client, m, endpoint)
		if !in || !led {
			b.Fatal("refused")
		}
		l.settle(f, m)
	}
	for n := range 1000 {
		g := &ghost{}
		g.member.occupant = g
		visit(addrOfClient(n%100), &g.member)
	}
	g := &ghost{}
	g.member.occupant = g
	clients := [4]netip.Addr{addrOfClient(1), addrOfClient(2), addrOfClient(5000), addrOfClient(5001)}
	n := 0
	for b.Loop() {
		n++
		visit(clients[n%4], &g.member)
		l.leave(f, &g.member)
	}
}
