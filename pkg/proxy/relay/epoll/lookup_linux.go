package epoll

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	netns "github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/proxy/relay"
)

const (
	// lookupSockets is the number of sockets that accept for the fronts of a family. A front belongs to one of them: a
	// flood of connections at one front fills the backlog of only a part of the others.
	lookupSockets = 8
	// lookupSlots is the maximum number of sockets of a family: those for addresses of this host, as many for addresses
	// with only some ports local, and for fronts that drop a deaf one and one of each of these for clients on this node.
	lookupSlots = 2*lookupSockets + 3
	// lookupFronts is the maximum number of fronts. Others have their own sockets.
	lookupFronts = 1 << 16
)

// lookup directs the connections of many fronts to a few sockets of ours, whatever their addresses. For each new
// connection, the kernel runs our program to find the socket (BPF sk_lookup, Linux 5.9) before it looks for one itself:
//
//	SYN to 10.96.0.10:80 --> fronts[10.96.0.10:80] = 3 --> sockets[3] --accept, getsockname--> carriers[10.96.0.10:80]
//
// So a front is an entry of a map, and no program that listens at 0.0.0.0:80 conflicts with it. The program ends with
// this process. Only Sync adds and closes, with one call at a time; loops call expect.
type lookup struct {
	fronts, sockets *ebpf.Map
	program         *ebpf.Program
	link            *netns.NetNsLink
	plane           *plane
	listeners       map[listenerKind][]*listener // opened with the first front that needs one
	next            int                          // index of the next front's listener

	mu       sync.RWMutex
	carriers map[netip.AddrPort]*carrier
}

// listenerKind is what fronts require of the socket that accepts for them.
type listenerKind struct {
	is4 bool
	traits
}

// lookupKey is a front as the program looks it up, with IPv4 addresses mapped to IPv6.
type lookupKey struct {
	Addr [16]byte
	Port uint32 // host byte order
}

func keyOfLookup(addr netip.AddrPort) lookupKey {
	return lookupKey{addr.Addr().As16(), uint32(addr.Port())}
}

// newLookup opens sockets that listen in all loops of p, and attaches the program to this network namespace.
func newLookup(p *plane) (l *lookup, err error) {
	l = &lookup{plane: p, listeners: map[listenerKind][]*listener{}, carriers: map[netip.AddrPort]*carrier{}}
	defer func() {
		if err != nil {
			l.close()
			l = nil
		}
	}()
	if l.fronts, err = ebpf.NewMap(&ebpf.MapSpec{Name: "winkube_fronts", Type: ebpf.Hash, KeySize: 20, ValueSize: 4, MaxEntries: lookupFronts,
		Flags: unix.BPF_F_NO_PREALLOC}); err != nil {
		return l, err
	}
	if l.sockets, err = ebpf.NewMap(&ebpf.MapSpec{Name: "winkube_sockets", Type: ebpf.SockMap, KeySize: 4, ValueSize: 4, MaxEntries: 2 * lookupSlots}); err != nil {
		return l, err
	}
	if l.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "winkube_lookup", Type: ebpf.SkLookup, AttachType: ebpf.AttachSkLookup, License: "Apache-2.0",
		Instructions: lookupProgram(l.fronts.FD(), l.sockets.FD())}); err != nil {
		return l, err
	}
	if err = l.listen(listenerKind{is4: true}); err != nil {
		return l, err
	}
	return l, l.attach()
}

// listen opens the sockets of a kind, unless they are open. Their own addresses serve nothing.
func (l *lookup) listen(kind listenerKind) error {
	addr, n := netip.IPv6Loopback(), lookupSockets
	if kind.is4 {
		addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	if kind.silent != relay.Hears {
		n = 1
	}
	for i := len(l.listeners[kind]); i < n; i++ {
		s, err := l.plane.listenTCP(netip.AddrPortFrom(addr, 0), kind.traits, l.expect, func(fd int) error { // sockets must listen before they can be in the map
			return l.sockets.Put(kind.slot(i), uint32(fd))
		})
		if err != nil {
			return err
		}
		l.listeners[kind] = append(l.listeners[kind], s)
	}
	return nil
}

// slot returns the index of the n-th socket of a kind in the map of sockets.
func (k listenerKind) slot(n int) uint32 {
	slot := n
	switch {
	case k.silent == relay.DeafToEach:
		slot = 2 * lookupSockets
	case k.silent == relay.DeafToFar:
		if slot = 2*lookupSockets + 1; k.transparent {
			slot++
		}
	case k.transparent:
		slot += lookupSockets
	}
	if !k.is4 {
		slot += lookupSlots
	}
	return uint32(slot)
}

func (l *lookup) attach() error {
	space, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot open this network namespace: %w", err)
	}
	defer unix.Close(space)
	attached, err := netns.AttachNetNs(space, l.program)
	if err == nil {
		l.link = attached
	}
	return err
}

// check attaches the program again if it was detached.
func (l *lookup) check() {
	info, err := l.link.Info()
	if err == nil && info.NetNs() != nil && info.NetNs().NetnsInode != 0 {
		return
	}
	_ = l.link.Close()
	if err := l.attach(); err != nil {
		klog.ErrorS(err, "Services are not served over TCP: the BPF program was detached from the kernel's socket lookup, and cannot be attached again; check what else manages BPF programs on this host")
	}
}

// close undoes newLookup, even if that failed halfway. No front may still use the lookup.
func (l *lookup) close() {
	if l.link != nil {
		_ = l.link.Close()
	}
	for _, kind := range l.listeners {
		for _, s := range kind {
			s.Close()
		}
	}
	_, _, _ = l.program.Close(), l.sockets.Close(), l.fronts.Close() // works for nil too
}

// led is a front's entry.
type led struct {
	plane *plane
	at    relay.Place
}

// lead directs connections to a front to c; nil: the front needs a socket.
func (p *plane) lead(at relay.Place, silent relay.Silence, c *carrier) relay.Socket {
	if p.bound {
		return nil
	}
	if p.lookup == nil {
		l, err := newLookup(p)
		if err != nil {
			p.bound = true
			klog.InfoS("Opening a socket for each front: BPF sk_lookup cannot be used (it needs Linux 5.9, CAP_BPF and CAP_NET_ADMIN). A program that listens on all addresses conflicts with Services that have its port",
				"reason", err.Error())
			return nil
		}
		p.lookup = l
	}
	if err := p.lookup.add(at, silent, c); err != nil {
		klog.V(2).InfoS("A front has a socket", "front", at.Addr, "reason", err)
		return nil
	}
	c.Metrics.Led.Inc()
	return &led{p, at}
}

func (l *lookup) add(at relay.Place, silent relay.Silence, c *carrier) error {
	l.mu.Lock()
	l.carriers[at.Addr] = c
	l.mu.Unlock()
	err := l.point(at, silent)
	if err != nil {
		l.remove(at.Addr)
	}
	return err
}

// point directs a front to the next suitable socket, and replaces a previous one.
func (l *lookup) point(at relay.Place, silent relay.Silence) error {
	kind := listenerKind{at.Addr.Addr().Is4(), traits{transparent: at.Port && silent != relay.DeafToEach, silent: silent}}
	if err := l.listen(kind); err != nil {
		return err
	}
	if silent == relay.DeafToFar {
		if err := l.listeners[kind][0].Silence(silent); err != nil { // shared, and perhaps from before a change of Near
			return err
		}
	}
	l.next++
	return l.fronts.Put(keyOfLookup(at.Addr), kind.slot(l.next%len(l.listeners[kind])))
}

// Silence implements relay.Silencer.
func (s *led) Silence(towards relay.Silence) error { return s.plane.lookup.point(s.at, towards) }

func (l *lookup) remove(addr netip.AddrPort) {
	_ = l.fronts.Delete(keyOfLookup(addr)) // fails only if there is none
	l.mu.Lock()
	delete(l.carriers, addr)
	l.mu.Unlock()
}

// Close implements relay.Socket. The last front also closes the lookup.
func (s *led) Close() {
	l := s.plane.lookup
	l.mu.RLock()
	c := l.carriers[s.at.Addr]
	l.mu.RUnlock()
	l.remove(s.at.Addr)
	c.Metrics.Led.Dec()
	if len(l.carriers) == 0 {
		l.close()
		s.plane.lookup = nil
	}
}

// expect returns the carrier of the front at which a connection arrived. It calls the carrier's expect before the front
// can be removed.
func (l *lookup) expect(fd int) *carrier {
	addr := localName(fd)
	l.mu.RLock()
	defer l.mu.RUnlock()
	c := l.carriers[addr]
	if c != nil {
		c.expect()
	}
	return c
}

// lookupProgram checks whether a connection is to a front, and selects the socket that accepts it.
func lookupProgram(fronts, sockets int) asm.Instructions {
	const (
		// struct bpf_sk_lookup of linux/bpf.h. Addresses are in network byte order.
		family, protocol, localIP4, localIP6, localPort = 8, 12, 40, 44, 60
		key                                             = -20 // on the stack: lookupKey
		pass                                            = 1   // SK_PASS
	)
	ctx, socket := asm.R6, asm.R7
	mapped := int64(int32(binary.NativeEndian.Uint32([]byte{0, 0, 0xff, 0xff})))
	program := asm.Instructions{
		asm.Mov.Reg(ctx, asm.R1),
		asm.LoadMem(asm.R2, ctx, protocol, asm.Word),
		asm.JNE.Imm(asm.R2, unix.IPPROTO_TCP, "pass"),
		asm.LoadMem(asm.R2, ctx, localPort, asm.Word),
		asm.StoreMem(asm.RFP, key+16, asm.R2, asm.Word),
		asm.LoadMem(asm.R2, ctx, family, asm.Word),
		asm.JEq.Imm(asm.R2, unix.AF_INET6, "IPv6"),
		asm.StoreImm(asm.RFP, key, 0, asm.Word),
		asm.StoreImm(asm.RFP, key+4, 0, asm.Word),
		asm.StoreImm(asm.RFP, key+8, mapped, asm.Word),
		asm.LoadMem(asm.R2, ctx, localIP4, asm.Word),
		asm.StoreMem(asm.RFP, key+12, asm.R2, asm.Word),
		asm.Ja.Label("find"),
	}
	for i := range int16(4) {
		load := asm.LoadMem(asm.R2, ctx, localIP6+4*i, asm.Word)
		if i == 0 {
			load = load.WithSymbol("IPv6")
		}
		program = append(program, load, asm.StoreMem(asm.RFP, key+4*i, asm.R2, asm.Word))
	}
	return append(program,
		asm.LoadMapPtr(asm.R1, fronts).WithSymbol("find"),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, key),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.LoadMapPtr(asm.R1, sockets),
		asm.Mov.Reg(asm.R2, asm.R0),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.Mov.Reg(socket, asm.R0),
		asm.Mov.Reg(asm.R1, ctx),
		asm.Mov.Reg(asm.R2, socket),
		asm.Mov.Imm(asm.R3, unix.BPF_SK_LOOKUP_F_REPLACE), // of two proxies, as during an upgrade, the later one serves
		asm.FnSkAssign.Call(),
		asm.Mov.Reg(asm.R1, socket),
		asm.FnSkRelease.Call(),
		asm.Mov.Imm(asm.R0, pass).WithSymbol("pass"),
		asm.Return(),
	)
}
