package epoll

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/winkube/winkube/pkg/proxy/relay"
)

// silence makes the kernel drop what arrives at a socket from some clients, with a filter: no SYN is answered, and no
// packet refused. Accepted sockets inherit the filter; their own clients pass it.
func silence(fd int, towards relay.Silence, near []netip.Prefix) error {
	if towards == relay.Hears {
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
	}
	program := []unix.SockFilter{drop}
	if towards == relay.DeafToFar {
		domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
		if err != nil {
			return fmt.Errorf("cannot determine the family of a socket: %w", err)
		}
		program = onlyNear(near, domain == unix.AF_INET)
	}
	if len(program) > maxFilter {
		return fmt.Errorf("this host and its pods have too many address ranges for a socket filter: %d instructions, want at most %d", len(program), maxFilter)
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

const (
	maxFilter = 4096      // BPF_MAXINSNS of linux/bpf_common.h
	ipHeader  = -0x100000 // SKF_NET_OFF of linux/filter.h: a filter of a TCP or UDP socket begins at that protocol's header
)

var (
	drop = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	pass = unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff}
)

// onlyNear returns a filter of classic BPF that passes packets of clients in near, and of clients at the address to which
// they send, which is then this host's. Each comparison that fails continues at the next range:
//
//	source == destination, or source & mask == range, for each range: pass
//	else: drop
func onlyNear(near []netip.Prefix, is4 bool) (program []unix.SockFilter) {
	source, destination, words := uint32(8), uint32(24), 4
	if is4 {
		source, destination, words = 12, 16, 1
	}
	load := func(offset uint32, word int) unix.SockFilter {
		at := ipHeader + int32(offset) + 4*int32(word)
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: uint32(at)}
	}
	for word := range words {
		program = append(program, load(destination, word), unix.SockFilter{Code: unix.BPF_MISC | unix.BPF_TAX}, load(source, word),
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_X, Jf: uint8(4*(words-1-word) + 1)})
	}
	program = append(program, pass)
	for _, p := range near {
		if p.Addr().Is4() != is4 {
			continue
		}
		var tests []unix.SockFilter
		addr := p.Masked().Addr().AsSlice()
		for word, bits := 0, p.Bits(); bits > 0; word, bits = word+1, bits-32 {
			mask := uint32(0xffffffff) << max(0, 32-bits)
			tests = append(tests, load(source, word), unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: mask},
				unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: binary.BigEndian.Uint32(addr[4*word:])})
		}
		for i := 2; i < len(tests); i += 3 {
			tests[i].Jf = uint8(len(tests) - i) // over the rest and pass
		}
		program = append(append(program, tests...), pass)
	}
	return append(program, drop)
}
