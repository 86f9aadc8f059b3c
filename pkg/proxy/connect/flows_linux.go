package connect

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// From linux/sock_diag.h and linux/inet_diag.h; golang.org/x/sys lacks them.
const (
	sockDiagByFamily, sockDestroy = 20, 21
	established                   = 1 // TCP_ESTABLISHED; for UDP: connected
)

// socketID is struct inet_diag_sockid.
type socketID struct {
	SourcePort, Port [2]byte
	Source, To       [16]byte
	Interface        uint32
	Cookie           [2]uint32
}

// diagRequest is struct inet_diag_req_v2.
type diagRequest struct {
	Family, Protocol, Ext, _ uint8
	States                   uint32
	ID                       socketID
}

// diagAnswer is struct inet_diag_msg.
type diagAnswer struct {
	Family, State, Timer, Retrans        uint8
	ID                                   socketID
	Expires, RQueue, WQueue, UID, INode_ uint32
}

// Len implements nl.NetlinkRequestData.
func (*diagRequest) Len() int { return int(unsafe.Sizeof(diagRequest{})) }

// Serialize implements nl.NetlinkRequestData.
func (r *diagRequest) Serialize() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(r)), r.Len())
}

// canEndFlows says why connected UDP sockets cannot be closed; nil: they can. It needs the kernel's sock_diag for UDP,
// the right to enter the network namespaces of pods, and the host's process IDs.
func canEndFlows() error {
	if inode, err := inodeOf("/proc/self/ns/pid"); err != nil || inode != firstPIDNamespace {
		return errors.New("this process does not see the host's processes")
	}
	return within("/proc/self/ns/net", func() error {
		request := nl.NewNetlinkRequest(sockDiagByFamily, unix.NLM_F_DUMP)
		request.AddData(&diagRequest{Family: unix.AF_INET, Protocol: unix.IPPROTO_UDP})
		_, err := request.Execute(unix.NETLINK_INET_DIAG, 0)
		return err
	})
}

// within runs do in a network namespace, on a separate thread.
func within(path string, do func() error) error {
	done := make(chan error, 1)
	go func() { // the locked thread ends with it
		runtime.LockOSThread()
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			unix.Close(fd)
		}
		if err == nil {
			err = do()
		}
		done <- err
	}()
	return <-done
}

// EndFlows implements Kernel. It enters namespaces only if there are flows to end.
func (k *linuxKernel) EndFlows(leads func(Key, Endpoint) bool) (ended int, err error) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	if k.maps == nil || !k.handles.connectsUDP {
		return 0, nil
	}
	lost := map[uint64]pair{}
	if err := readAll(k.maps["connected"], lost); err != nil {
		return 0, fmt.Errorf("cannot read the BPF map of UDP flows: %w", err)
	}
	maps.DeleteFunc(lost, func(_ uint64, p pair) bool {
		return p == pair{} || leads(Key{p.Front.Addr, p.Front.Port, protoUDP}, p.Endpoint)
	})
	if len(lost) == 0 {
		return 0, nil
	}
	spaces, err := k.namespaces()
	errs := []error{err}
	for _, path := range spaces {
		err := within(path, func() error {
			done, err := endFlows(lost)
			for _, cookie := range done {
				// The program deletes the entry and updates the count. The socket may be closed already.
				_ = k.maps["connected"].Update(&cookie, &pair{}, ebpf.UpdateExist)
			}
			ended += len(done)
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) { // the process has ended
			errs = append(errs, err)
		}
	}
	return ended, errors.Join(errs...)
}

// namespaces returns the network namespaces of processes in our cgroup, each as a path of one of its processes.
func (k *linuxKernel) namespaces() ([]string, error) {
	seen := map[uint64]string{}
	err := filepath.WalkDir(k.cgroup, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil // the cgroup has gone
		}
		file, err := os.Open(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return nil
		}
		defer file.Close()
		for lines := bufio.NewScanner(file); lines.Scan(); {
			space := "/proc/" + strings.TrimSpace(lines.Text()) + "/ns/net"
			if inode, err := inodeOf(space); err == nil && seen[inode] == "" {
				seen[inode] = space
			}
		}
		return nil
	})
	var out []string
	for _, path := range seen {
		out = append(out, path)
	}
	return out, err
}

// endFlows closes the connected UDP sockets in this network namespace that are in lost, and returns their cookies. It
// skips sockets that were connected elsewhere since.
func endFlows(lost map[uint64]pair) (ended []uint64, err error) {
	var errs []error
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		request := nl.NewNetlinkRequest(sockDiagByFamily, unix.NLM_F_DUMP)
		request.AddData(&diagRequest{Family: family, Protocol: unix.IPPROTO_UDP, States: 1 << established})
		answers, err := request.Execute(unix.NETLINK_INET_DIAG, 0)
		if err != nil {
			errs = append(errs, fmt.Errorf("cannot list UDP sockets: %w", err))
			continue
		}
		for _, answer := range answers {
			if len(answer) < int(unsafe.Sizeof(diagAnswer{})) {
				continue
			}
			id := (*diagAnswer)(unsafe.Pointer(&answer[0])).ID
			cookie := uint64(id.Cookie[0]) | uint64(id.Cookie[1])<<32
			p, ours := lost[cookie]
			if !ours || p.Endpoint != id.to(family) {
				continue
			}
			end := nl.NewNetlinkRequest(sockDestroy, unix.NLM_F_ACK)
			end.AddData(&diagRequest{Family: family, Protocol: unix.IPPROTO_UDP, States: 1 << established, ID: id})
			if _, err := end.Execute(unix.NETLINK_INET_DIAG, 0); err != nil && !errors.Is(err, unix.ENOENT) {
				errs = append(errs, fmt.Errorf("cannot end a UDP flow to %s: %w", p.Endpoint.AddrPort(), err))
				continue
			}
			ended = append(ended, cookie)
		}
	}
	return ended, errors.Join(errs...)
}

// to returns the peer of the socket.
func (id *socketID) to(family uint8) Endpoint {
	e := Endpoint{Addr: id.To, Port: uint32(binary.NativeEndian.Uint16(id.Port[:]))}
	if family == unix.AF_INET {
		e.Addr = [16]byte{10: 0xff, 11: 0xff}
		copy(e.Addr[12:], id.To[:4])
	}
	return e
}
