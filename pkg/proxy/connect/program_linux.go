package connect

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// Fields of struct bpf_sock_addr and struct bpf_sock (linux/bpf.h), a stable interface. Addresses and ports are in
// network byte order.
const (
	ctxIP4, ctxIP6, ctxPort, ctxProtocol, ctxSocket   = 4, 8, 24, 36, 64
	socketProtocol, socketIP4, socketIP6, socketState = 12, 24, 28, 72
)

// The programs' stack, as offsets from the frame pointer.
const (
	onKey      = -24  // Key
	onEndpoint = -48  // Endpoint
	onSlot     = -56  // SlotKey
	onMember   = -80  // MemberKey
	onClient   = -96  // affinityKey
	onHad      = -128 // affinityValue
	onSocket   = -136 // the socket's cookie
	onPlace    = -144 // *flow
	onCounter  = -152
	onPair     = -192 // pair
	onZero     = -200
)

// affinityKey is a client of a front. The client is a network namespace: all programs of a pod, or all of the host.
type affinityKey struct {
	Namespace uint64
	Front     uint32
	_         uint32
}

// affinityValue is a client's last endpoint and the time of its last connection.
type affinityValue struct {
	Time uint64 // ns since boot
	Endpoint
	_ uint32
}

// pair is a front and the endpoint that was chosen for it. The kernel stores one with each connected socket of TCP. Those of
// UDP are in a map by socket cookie: sock_diag does not show the storage of UDP sockets, and a name is often resolved with a
// new socket, for which an entry in a map costs less than storage.
type pair struct{ Front, Endpoint Endpoint }

// flow is one unconnected socket's traffic to one front. Flows are stored with their socket, so that no socket can
// evict another's.
type flow struct {
	Front uint32 // its ID, never 0
	pair
}

// flows are the flows of one socket. When all are in use, the next one replaces the oldest. If several fronts have the
// same endpoint, its replies show the front to which the socket sent last.
type flows struct {
	Next, Last uint32
	Each       [flowsOfSocket]flow
}

const (
	pairEndpoint = 20
	pairSize     = 40
	flowPair     = 4
	flowSize     = flowPair + pairSize
	flowsLast    = 4
	flowsEach    = 8
	words        = 5 // 4-byte words of an Endpoint
)

// counters, by index in the map
const (
	countTCP = iota
	countUDP
	countRefused
	counters
)

// handles are the maps' file descriptors for the programs.
type handles struct {
	fronts, slots, members, affinity, flows, sessions, connected, clients, counts int
	refuses                                                                       bool // the kernel has bpf_set_retval (Linux 5.18)
	connectsUDP                                                                   bool // flows can be ended; otherwise the relay serves connected UDP
}

// assembly is a program under construction.
type assembly struct {
	handles
	ipv6         bool
	instructions asm.Instructions
	label        string // of the next instruction
	labels       int
}

func (a *assembly) add(list ...asm.Instruction) {
	for _, one := range list {
		if a.label != "" {
			one, a.label = one.WithSymbol(a.label), ""
		}
		a.instructions = append(a.instructions, one)
	}
}

// at labels the next instruction.
func (a *assembly) at(label string) {
	if a.label != "" { // two labels for one instruction
		a.add(asm.Ja.Label(label))
	}
	a.label = label
}

const (
	ctx     = asm.R6
	front   = asm.R7 // *Front
	kept    = asm.R8 // *pair, or before that the socket; 0 for a UDP socket that connects
	scratch = asm.R9
)

// copyWords copies 4-byte words between offsets from two registers.
func (a *assembly) copyWords(to asm.Register, toAt int16, from asm.Register, fromAt int16, n int16) {
	for i := range n {
		a.add(asm.LoadMem(asm.R1, from, fromAt+4*i, asm.Word), asm.StoreMem(to, toAt+4*i, asm.R1, asm.Word))
	}
}

// unlessEqual jumps if words differ.
func (a *assembly) unlessEqual(x asm.Register, xAt int16, y asm.Register, yAt int16, n int16, label string) {
	for i := range n {
		a.add(asm.LoadMem(asm.R1, x, xAt+4*i, asm.Word), asm.LoadMem(asm.R2, y, yAt+4*i, asm.Word), asm.JNE.Reg(asm.R1, asm.R2, label))
	}
}

// find looks up the key on the stack and puts the result into R0.
func (a *assembly) find(in int, key int16) {
	a.add(asm.LoadMapPtr(asm.R1, in), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, int32(key)), asm.FnMapLookupElem.Call())
}

// put writes an entry. R0 is 0 on success.
func (a *assembly) put(in int, key, value int16, flags ebpf.MapUpdateFlags) {
	a.add(asm.LoadMapPtr(asm.R1, in), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, int32(key)),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, int32(value)), asm.Mov.Imm(asm.R4, int32(flags)), asm.FnMapUpdateElem.Call())
}

func (a *assembly) ret(value int32) { a.add(asm.Mov.Imm(asm.R0, value), asm.Return()) }

// native converts four bytes to the processor's byte order.
func native(b ...byte) int32 { return int32(binary.NativeEndian.Uint32(b)) }

// readAddress copies the address and port of the call to an offset on the stack.
func (a *assembly) readAddress(to int16) {
	if a.ipv6 {
		for i := range int16(4) {
			a.add(asm.LoadMem(asm.R2, ctx, ctxIP6+4*i, asm.Word), asm.StoreMem(asm.RFP, to+4*i, asm.R2, asm.Word))
		}
	} else {
		a.add(asm.StoreImm(asm.RFP, to, 0, asm.Word), asm.StoreImm(asm.RFP, to+4, 0, asm.Word), asm.StoreImm(asm.RFP, to+8, int64(native(0, 0, 255, 255)), asm.Word),
			asm.LoadMem(asm.R2, ctx, ctxIP4, asm.Word), asm.StoreMem(asm.RFP, to+12, asm.R2, asm.Word))
	}
	a.add(asm.LoadMem(asm.R2, ctx, ctxPort, asm.Word), asm.StoreMem(asm.RFP, to+16, asm.R2, asm.Word))
}

// writeAddress replaces the address and port of the call with an Endpoint.
func (a *assembly) writeAddress(from asm.Register, at int16) {
	if a.ipv6 {
		for i := range int16(4) {
			a.add(asm.LoadMem(asm.R2, from, at+4*i, asm.Word), asm.StoreMem(ctx, ctxIP6+4*i, asm.R2, asm.Word))
		}
	} else {
		a.add(asm.LoadMem(asm.R2, from, at+12, asm.Word), asm.StoreMem(ctx, ctxIP4, asm.R2, asm.Word))
	}
	a.add(asm.LoadMem(asm.R2, from, at+16, asm.Word), asm.StoreMem(ctx, ctxPort, asm.R2, asm.Word))
}

// ask looks up whether the endpoint on the stack is a member of the front. R0 is nil or *state.
func (a *assembly) ask() {
	a.add(asm.LoadMem(asm.R1, front, 0, asm.Word), asm.StoreMem(asm.RFP, onMember, asm.R1, asm.Word))
	a.copyWords(asm.RFP, onMember+4, asm.RFP, onEndpoint, words)
	a.find(a.members, onMember)
}

// count increments a counter.
func (a *assembly) count(index int64) {
	a.labels++
	past := fmt.Sprintf("counted %d", a.labels)
	a.add(asm.StoreImm(asm.RFP, onCounter, index, asm.Word))
	a.find(a.counts, onCounter)
	a.add(asm.JEq.Imm(asm.R0, 0, past), asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord), asm.Add.Imm(asm.R1, 1), asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord))
	a.at(past)
}

// forward is the program for connect, and for sendmsg on unconnected sockets. The relay serves what it leaves
// unchanged.
func forward(h handles, ipv6, sendmsg bool) asm.Instructions {
	a := &assembly{handles: h, ipv6: ipv6}
	a.add(asm.Mov.Reg(ctx, asm.R1), asm.LoadMem(asm.R2, ctx, ctxProtocol, asm.Word))
	switch {
	case sendmsg:
		a.add(asm.JNE.Imm(asm.R2, unix.IPPROTO_UDP, "pass"))
	case h.connectsUDP:
		a.add(asm.JEq.Imm(asm.R2, unix.IPPROTO_TCP, "ours"), asm.JNE.Imm(asm.R2, unix.IPPROTO_UDP, "pass"))
	default:
		a.add(asm.JNE.Imm(asm.R2, unix.IPPROTO_TCP, "pass"))
	}
	a.at("ours")
	a.add(asm.StoreMem(asm.RFP, onKey+20, asm.R2, asm.Word))
	a.readAddress(onKey)
	a.find(a.fronts, onKey)
	a.add(asm.JEq.Imm(asm.R0, 0, "pass"), asm.Mov.Reg(front, asm.R0))
	a.socket()
	a.leaveLoopback()
	a.add(asm.LoadMem(asm.R2, front, 4, asm.Word), asm.JNE.Imm(asm.R2, 0, "endpoints"))
	if h.refuses {
		a.count(countRefused)
		a.add(asm.Mov.Imm(asm.R1, -int32(unix.ECONNREFUSED)), asm.FnSetRetval.Call())
		a.ret(0)
	} else {
		a.add(asm.Ja.Label("pass"))
	}
	a.at("endpoints")
	if sendmsg {
		a.keep(a.flows, true, "pass")
		a.flow()
		a.choose()
		a.remember()
	} else {
		a.add(asm.LoadMem(asm.R1, asm.RFP, onKey+20, asm.Word), asm.JEq.Imm(asm.R1, unix.IPPROTO_TCP, "storage"), asm.Mov.Imm(kept, 0), asm.Ja.Label("stored"))
		a.at("storage")
		a.keep(a.sessions, true, "pass")
		a.at("stored")
		a.choose()
		a.connect()
	}
	a.at("write")
	a.writeAddress(asm.RFP, onEndpoint)
	a.at("pass")
	a.ret(1)
	return a.instructions
}

// connect stores what the socket is connected to. The relay serves UDP sockets that cannot be closed later, and those
// beyond a client's share.
func (a *assembly) connect() {
	a.add(asm.JNE.Imm(kept, 0, "TCP")) // only TCP has storage
	a.cookie(onSocket)
	a.add(asm.Mov.Reg(asm.R1, ctx), asm.FnGetNetnsCookie.Call(), asm.StoreMem(asm.RFP, onClient, asm.R0, asm.DWord))
	a.find(a.clients, onClient)
	a.add(asm.JNE.Imm(asm.R0, 0, "client"), asm.Mov.Imm(asm.R1, 0), asm.StoreMem(asm.RFP, onZero, asm.R1, asm.DWord))
	a.put(a.clients, onClient, onZero, ebpf.UpdateNoExist)
	a.find(a.clients, onClient)
	a.add(asm.JEq.Imm(asm.R0, 0, "pass"))
	a.at("client")
	a.add(asm.Mov.Reg(scratch, asm.R0), asm.LoadMem(asm.R1, scratch, 0, asm.DWord), asm.JSGE.Imm(asm.R1, maxConnectedOfClient, "pass"))
	a.copyWords(asm.RFP, onPair, asm.RFP, onKey, words)
	a.copyWords(asm.RFP, onPair+pairEndpoint, asm.RFP, onEndpoint, words)
	a.put(a.connected, onSocket, onPair, ebpf.UpdateNoExist)
	a.add(asm.JNE.Imm(asm.R0, 0, "connected before"), asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(scratch, asm.R1, asm.DWord, 0), asm.Ja.Label("UDP"))
	a.at("connected before")
	a.put(a.connected, onSocket, onPair, ebpf.UpdateAny)
	a.add(asm.JNE.Imm(asm.R0, 0, "pass"))
	a.at("UDP")
	a.count(countUDP)
	a.add(asm.Ja.Label("write"))
	a.at("TCP")
	a.count(countTCP)
	a.copyWords(kept, 0, asm.RFP, onKey, words)
	a.copyWords(kept, pairEndpoint, asm.RFP, onEndpoint, words)
}

// release is the program for a socket that is closed for good.
func release(h handles) asm.Instructions {
	a := &assembly{handles: h}
	a.add(asm.Mov.Reg(ctx, asm.R1), asm.LoadMem(asm.R2, ctx, socketProtocol, asm.Word), asm.JNE.Imm(asm.R2, unix.IPPROTO_UDP, "pass"))
	a.cookie(onSocket)
	a.add(asm.LoadMapPtr(asm.R1, a.connected), asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, onSocket), asm.FnMapDeleteElem.Call(), asm.JNE.Imm(asm.R0, 0, "pass"))
	a.add(asm.Mov.Reg(asm.R1, ctx), asm.FnGetNetnsCookie.Call(), asm.StoreMem(asm.RFP, onClient, asm.R0, asm.DWord))
	a.find(a.clients, onClient)
	a.add(asm.JEq.Imm(asm.R0, 0, "pass"), asm.Mov.Imm(asm.R1, -1), asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0))
	a.at("pass")
	a.ret(1)
	return a.instructions
}

// leaveLoopback skips sockets that are bound to a loopback address: they reach this host, and so the relay, but no
// endpoint.
func (a *assembly) leaveLoopback() {
	a.add(asm.LoadMem(asm.R2, kept, socketIP4, asm.Word), asm.And.Imm(asm.R2, native(255, 0, 0, 0)), asm.JEq.Imm(asm.R2, native(127, 0, 0, 0), "pass"))
	if !a.ipv6 {
		return
	}
	for i := range int16(3) {
		a.add(asm.LoadMem(asm.R2, kept, socketIP6+4*i, asm.Word), asm.JNE.Imm(asm.R2, 0, "not loopback"))
	}
	a.add(asm.LoadMem(asm.R2, kept, socketIP6+12, asm.Word), asm.JEq.Imm32(asm.R2, native(0, 0, 0, 1), "pass"))
	a.at("not loopback")
}

func (a *assembly) socket() {
	a.add(asm.LoadMem(kept, ctx, ctxSocket, asm.DWord), asm.JEq.Imm(kept, 0, "pass"))
}

// keep replaces the socket in kept with its storage of one kind, or jumps to none.
func (a *assembly) keep(storage int, create bool, none string) {
	flags := int32(0)
	if create {
		flags = 1 // BPF_SK_STORAGE_GET_F_CREATE
	}
	a.add(asm.LoadMapPtr(asm.R1, storage), asm.Mov.Reg(asm.R2, kept), asm.Mov.Imm(asm.R3, 0), asm.Mov.Imm(asm.R4, flags), asm.FnSkStorageGet.Call(),
		asm.JEq.Imm(asm.R0, 0, none), asm.Mov.Reg(kept, asm.R0))
}

// flow finds this socket's previous endpoint for the front if it is still a member, or a slot for a new flow.
func (a *assembly) flow() {
	a.add(asm.LoadMem(asm.R3, front, 0, asm.Word))
	for i := range int16(flowsOfSocket) {
		next := fmt.Sprintf("flow %d", i+1)
		a.add(asm.LoadMem(asm.R1, kept, flowsEach+flowSize*i, asm.Word), asm.JNE.Reg(asm.R1, asm.R3, next))
		a.add(asm.StoreImm(kept, flowsLast, int64(i), asm.Word), asm.Mov.Reg(scratch, kept), asm.Add.Imm(scratch, flowsEach+flowSize*int32(i)), asm.Ja.Label("had"))
		a.at(next)
	}
	a.add(asm.LoadMem(asm.R1, kept, 0, asm.Word), asm.Mov.Reg(asm.R2, asm.R1), asm.Add.Imm(asm.R2, 1), asm.StoreMem(kept, 0, asm.R2, asm.Word),
		asm.And.Imm(asm.R1, flowsOfSocket-1), asm.StoreMem(kept, flowsLast, asm.R1, asm.Word))
	a.place()
	a.add(asm.StoreMem(asm.RFP, onPlace, scratch, asm.DWord), asm.Ja.Label("choose"))
	a.at("had")
	a.add(asm.StoreMem(asm.RFP, onPlace, scratch, asm.DWord))
	a.copyWords(asm.RFP, onEndpoint, scratch, flowPair+pairEndpoint, words)
	a.ask()
	a.add(asm.JNE.Imm(asm.R0, 0, "write"))
	a.at("choose")
}

// place computes in scratch the address of the flow with index R1.
func (a *assembly) place() {
	a.add(asm.And.Imm(asm.R1, flowsOfSocket-1), asm.Mul.Imm(asm.R1, flowSize), asm.Mov.Reg(scratch, kept), asm.Add.Reg(scratch, asm.R1), asm.Add.Imm(scratch, flowsEach))
}

func (a *assembly) cookie(to int16) {
	a.add(asm.Mov.Reg(asm.R1, ctx), asm.FnGetSocketCookie.Call(), asm.StoreMem(asm.RFP, to, asm.R0, asm.DWord))
}

// remember stores a new flow.
func (a *assembly) remember() {
	a.count(countUDP)
	a.add(asm.LoadMem(scratch, asm.RFP, onPlace, asm.DWord), asm.LoadMem(asm.R1, front, 0, asm.Word), asm.StoreMem(scratch, 0, asm.R1, asm.Word))
	a.copyWords(scratch, flowPair, asm.RFP, onKey, words)
	a.copyWords(scratch, flowPair+pairEndpoint, asm.RFP, onEndpoint, words)
}

// spread is 2^64 divided by the golden ratio, as a signed number. Its multiples are evenly spread over a circle.
const spread int64 = 0x9E3779B97F4A7C15 - 1<<64

// choose puts an endpoint on the stack: the next in turn, or with affinity the client's recent one. If the client is
// unknown or was evicted from the map, its ID selects the same endpoint as before, as long as the endpoints do not
// change and within one affinity period.
func (a *assembly) choose() {
	for i := range int16(4) {
		a.add(asm.StoreImm(asm.RFP, onClient+4*i, 0, asm.Word))
	}
	a.add(asm.LoadMem(asm.R1, front, 8, asm.Word), asm.JEq.Imm(asm.R1, 0, "turn"))
	a.add(asm.Mov.Reg(asm.R1, ctx), asm.FnGetNetnsCookie.Call(), asm.StoreMem(asm.RFP, onClient, asm.R0, asm.DWord))
	a.add(asm.LoadMem(asm.R1, front, 0, asm.Word), asm.StoreMem(asm.RFP, onClient+8, asm.R1, asm.Word))
	a.find(a.affinity, onClient)
	a.add(asm.JEq.Imm(asm.R0, 0, "number"), asm.Mov.Reg(scratch, asm.R0))
	a.copyWords(asm.RFP, onEndpoint, scratch, 8, words)
	a.add(asm.FnKtimeGetNs.Call(), asm.LoadMem(asm.R1, scratch, 0, asm.DWord), asm.Sub.Reg(asm.R0, asm.R1),
		asm.LoadMem(asm.R2, front, 8, asm.Word), asm.Mul.Imm(asm.R2, 1_000_000_000), asm.JGT.Reg(asm.R0, asm.R2, "number"))
	a.ask()
	a.add(asm.JEq.Imm(asm.R0, 0, "number"), asm.LoadMem(asm.R1, asm.R0, 0, asm.Word), asm.JEq.Imm(asm.R1, int32(target), "chosen"))
	a.at("number")
	a.add(asm.FnKtimeGetNs.Call(), asm.LoadMem(asm.R2, front, 8, asm.Word), asm.Mul.Imm(asm.R2, 1_000_000_000), asm.Div.Reg(asm.R0, asm.R2), // the period
		asm.LoadMem(asm.R2, asm.RFP, onClient, asm.DWord), asm.Add.Reg(asm.R2, asm.R0), asm.LoadMem(asm.R1, front, 0, asm.Word), asm.Add.Reg(asm.R2, asm.R1),
		asm.LoadImm(asm.R1, spread, asm.DWord), asm.Mul.Reg(asm.R2, asm.R1), asm.RSh.Imm(asm.R2, 32),
		asm.LoadMem(asm.R3, front, 4, asm.Word), asm.JEq.Imm(asm.R3, 0, "pass"), asm.Mul.Reg(asm.R2, asm.R3), asm.RSh.Imm(asm.R2, 32), asm.Ja.Label("slot"))
	a.at("turn")
	a.add(asm.LoadMem(asm.R2, front, 12, asm.Word), asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(front, asm.R1, asm.Word, 12),
		asm.LoadMem(asm.R3, front, 4, asm.Word), asm.JEq.Imm(asm.R3, 0, "pass"), asm.Mod.Reg32(asm.R2, asm.R3))
	a.at("slot")
	a.add(asm.StoreMem(asm.RFP, onSlot+4, asm.R2, asm.Word), asm.LoadMem(asm.R1, front, 0, asm.Word), asm.StoreMem(asm.RFP, onSlot, asm.R1, asm.Word))
	a.find(a.slots, onSlot)
	a.add(asm.JEq.Imm(asm.R0, 0, "pass"), asm.Mov.Reg(scratch, asm.R0))
	a.copyWords(asm.RFP, onEndpoint, scratch, 0, words)
	a.at("chosen")
	a.add(asm.LoadMem(asm.R1, front, 8, asm.Word), asm.JEq.Imm(asm.R1, 0, "known"))
	a.add(asm.FnKtimeGetNs.Call(), asm.StoreMem(asm.RFP, onHad, asm.R0, asm.DWord), asm.StoreImm(asm.RFP, onHad+28, 0, asm.Word))
	a.copyWords(asm.RFP, onHad+8, asm.RFP, onEndpoint, words)
	a.put(a.affinity, onClient, onHad, ebpf.UpdateAny)
	a.at("known")
}

// backward is the program for recvmsg and getpeername: it shows the front instead of the endpoint that was chosen for
// it.
func backward(h handles, ipv6, recvmsg bool) asm.Instructions {
	a := &assembly{handles: h, ipv6: ipv6}
	a.add(asm.Mov.Reg(ctx, asm.R1))
	a.readAddress(onEndpoint)
	a.socket()
	other := "pass"
	if recvmsg {
		other = "flows"
		const established = 1 // TCP_ESTABLISHED, also the state of a connected UDP socket
		a.add(asm.LoadMem(asm.R1, kept, socketState, asm.Word), asm.JNE.Imm(asm.R1, established, other))
	} else {
		a.add(asm.LoadMem(asm.R1, ctx, ctxProtocol, asm.Word), asm.JEq.Imm(asm.R1, unix.IPPROTO_UDP, "UDP"))
		a.keep(a.sessions, false, other)
		a.add(asm.Ja.Label("pair"))
		a.at("UDP")
	}
	a.cookie(onSocket)
	a.find(a.connected, onSocket)
	a.add(asm.JEq.Imm(asm.R0, 0, other), asm.Mov.Reg(kept, asm.R0))
	a.at("pair")
	a.unlessEqual(kept, pairEndpoint, asm.RFP, onEndpoint, words, other)
	a.writeAddress(kept, 0)
	if recvmsg {
		a.add(asm.Ja.Label("pass"))
		a.at("flows")
		a.socket()
		a.keep(a.flows, false, "pass")
		a.add(asm.LoadMem(asm.R1, kept, flowsLast, asm.Word))
		a.place()
		a.unlessEqual(scratch, flowPair+pairEndpoint, asm.RFP, onEndpoint, words, "flow 0")
		a.writeAddress(scratch, flowPair)
		a.add(asm.Ja.Label("pass"))
		a.at("flow 0")
		for i := range int16(flowsOfSocket) {
			at, next := flowsEach+flowSize*i+flowPair, fmt.Sprintf("flow %d", i+1)
			a.unlessEqual(kept, at+pairEndpoint, asm.RFP, onEndpoint, words, next)
			a.writeAddress(kept, at)
			a.add(asm.Ja.Label("pass"))
			a.at(next)
		}
	}
	a.at("pass")
	a.ret(1)
	return a.instructions
}
