package relaytest

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
	"github.com/winkube/winkube/pkg/proxy/relay"
)

// Bench runs the benchmarks of a Plane: bulk, requests, connections, and changes of the Table.
func Bench(b *testing.B, plane relay.NewPlane) {
	b.Run("bulk", func(b *testing.B) { benchBulk(b, plane) })
	b.Run("requests", func(b *testing.B) { benchRequests(b, plane) })
	b.Run("connections", func(b *testing.B) { benchConnections(b, plane) })
	b.Run("sync", func(b *testing.B) { benchSync(b, plane) })
}

// benchWays runs one kind of traffic three ways in one process: directly to the endpoint, through io.Copy twins (a
// naive relay of twenty lines), and through the Relay. Only their ratios are meaningful.
func benchWays(b *testing.B, plane relay.NewPlane, endpoint netip.AddrPort, run func(b *testing.B, front netip.AddrPort)) {
	b.Run("direct", func(b *testing.B) { run(b, endpoint) })
	b.Run("twins", func(b *testing.B) { run(b, twins(b, endpoint)) })
	b.Run("relay", func(b *testing.B) {
		r := relay.New(plane, relay.Config{Addresses: NewAddresses(), Clock: clock.RealClock{}})
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
	return TCPServer(b, func(client *net.TCPConn) {
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

func benchBulk(b *testing.B, plane relay.NewPlane) {
	chunk := make([]byte, 128<<10)
	source := TCPServer(b, func(c *net.TCPConn) {
		for {
			if _, err := c.Write(chunk); err != nil {
				return
			}
		}
	})
	benchWays(b, plane, source, func(b *testing.B, front netip.AddrPort) {
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

// benchRequests is keep-alive traffic: 256 bytes per request, 1 KiB per response, 32 connections.
func benchRequests(b *testing.B, plane relay.NewPlane) {
	answer := make([]byte, 1024)
	server := TCPServer(b, func(c *net.TCPConn) {
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
	benchWays(b, plane, server, func(b *testing.B, front netip.AddrPort) {
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

// benchConnections opens a connection, sends one request, and closes it.
func benchConnections(b *testing.B, plane relay.NewPlane) {
	server := TCPServer(b, func(c *net.TCPConn) {
		one := make([]byte, 64)
		if n, err := c.Read(one); err == nil {
			_, _ = c.Write(one[:n])
		}
		_, _ = c.Read(one) // the client ends first and keeps TIME_WAIT
	})
	benchWays(b, plane, server, func(b *testing.B, front netip.AddrPort) {
		b.SetParallelism(16)
		b.RunParallel(func(pb *testing.PB) {
			one := make([]byte, 64)
			for pb.Next() {
				conn := dialBench(b, front)
				_ = conn.SetLinger(0) // avoids TIME_WAIT, which would exhaust this machine's ports
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

// benchSync changes one endpoint among many services, including the sockets.
func benchSync(b *testing.B, plane relay.NewPlane) {
	for _, n := range []int{100, 4000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := relay.New(plane, relay.Config{Addresses: NewAddresses(), Clock: clock.RealClock{}, UDPIdle: time.Second})
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
