package connect

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
)

// BenchmarkSync syncs 10,000 Services with five endpoints each: all of them at the start, all by the next proxy, and
// one change.
func BenchmarkSync(b *testing.B) {
	h := &host{cgroup: inCgroup(b)}
	k := NewKernel(h.cgroup).(*linuxKernel)
	if err := k.Open(); err != nil {
		b.Skip(err)
	}
	k.Close()
	defer func() { _ = NewKernel(h.cgroup).Remove() }()
	var routes []proxy.Route
	for n := range 10_000 {
		r := route(fmt.Sprintf("s%05d 10.96.%d.%d:80", n, n>>8, n&255))
		for e := range 5 {
			addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 128 + byte(e), byte(n >> 8), byte(n)}), 8080)
			r.Backends = append(r.Backends, proxy.Endpoint{Addr: addr})
		}
		routes = append(routes, r)
	}
	table := tableOf(routes...)
	sync := func(b *testing.B, of *Balancer, changed ...proxy.ServiceName) {
		if err := of.Sync(b.Context(), table, changed); err != nil {
			b.Fatal(err)
		}
	}
	b.Run("cold", func(b *testing.B) {
		for range b.N {
			b.StopTimer()
			_ = NewKernel(h.cgroup).Remove()
			of := New(NewKernel(h.cgroup), Limits{})
			b.StartTimer()
			sync(b, of)
			b.StopTimer()
			of.Close()
		}
	})
	k = NewKernel(h.cgroup).(*linuxKernel)
	of := New(k, Limits{})
	defer of.Close()
	sync(b, of)
	b.Run("take over", func(b *testing.B) {
		for range b.N {
			next := New(NewKernel(h.cgroup), Limits{})
			sync(b, next)
			next.Close()
		}
	})
	b.Run("compare", func(b *testing.B) {
		for range b.N {
			of.unread = 0
			sync(b, of)
		}
	})
	b.Run("compare with the maps", func(b *testing.B) {
		for range b.N {
			of.unread = readEach
			sync(b, of)
		}
	})
	b.Run("one change", func(b *testing.B) {
		full, less := table.Routes[5000].Backends, table.Routes[5000].Backends[1:]
		for n := range b.N {
			table.Routes[5000].Backends = [][]proxy.Endpoint{full, less}[n%2]
			sync(b, of, table.Routes[5000].Service.ServiceName)
		}
		table.Routes[5000].Backends = full
	})
	b.Run("maps", func(b *testing.B) { b.ReportMetric(mapped(b, k), "MiB") })
}

// mapped returns the kernel's memory for the maps.
func mapped(b *testing.B, k *linuxKernel) float64 {
	total := uint64(0)
	for _, m := range k.maps {
		info, err := m.Info()
		if err != nil {
			b.Fatal(err)
		}
		if used, ok := info.Memlock(); ok {
			total += used
		}
	}
	return float64(total) / (1 << 20)
}

// BenchmarkDial measures the cost of a decision: connect and close, with the programs attached, directly to an endpoint
// and through a Service.
func BenchmarkDial(b *testing.B) {
	cgroup := inCgroup(b)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	endpoint := l.Addr().(*net.TCPAddr).AddrPort()
	b.Run("without programs", func(b *testing.B) { dial(b, unix.SOCK_STREAM, endpoint) })
	b.Run("UDP, without programs", func(b *testing.B) { dial(b, unix.SOCK_DGRAM, endpoint) })
	k := NewKernel(cgroup)
	of := New(k, Limits{})
	defer of.Close()
	defer k.Remove()
	if err := k.Open(); err != nil {
		b.Skip(err)
	}
	udp := route("b 10.96.0.1:80 " + endpoint.String())
	udp.Protocol = v1.ProtocolUDP
	if err := of.Sync(b.Context(), tableOf(route("a 10.96.0.1:80 "+endpoint.String()), udp), nil); err != nil {
		b.Fatal(err)
	}
	service := netip.MustParseAddrPort("10.96.0.1:80")
	b.Run("directly", func(b *testing.B) { dial(b, unix.SOCK_STREAM, endpoint) })
	b.Run("by service", func(b *testing.B) { dial(b, unix.SOCK_STREAM, service) })
	b.Run("UDP, directly", func(b *testing.B) { dial(b, unix.SOCK_DGRAM, endpoint) })
	b.Run("UDP, by service", func(b *testing.B) { dial(b, unix.SOCK_DGRAM, service) })
}

func dial(b *testing.B, kind int, to netip.AddrPort) {
	at := &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	for range b.N {
		fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Connect(fd, at)
		}
		if err != nil {
			b.Fatal(err)
		}
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		_ = unix.Close(fd)
	}
}
