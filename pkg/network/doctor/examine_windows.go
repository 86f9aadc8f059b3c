package doctor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/netsh"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/network/hostnet"
	"github.com/winkube/winkube/pkg/portblocks"
)

// Examine reads the host's part of s, whose Config must be set. It changes nothing; s.Unread lists what could not be read.
func Examine(ctx context.Context, s *Symptoms) error {
	var err error
	if s.Surroundings, err = hostnet.New().Look(); err != nil {
		s.Unread = append(s.Unread, fmt.Sprintf("adapters and routes: %v", err))
	}
	run := command.New()
	for _, name := range []string{"hns", "docker"} {
		if out, err := run.Run(ctx, nil, "sc.exe", "query", name); err != nil || !strings.Contains(string(out), "RUNNING") {
			s.Stopped = append(s.Stopped, name)
		}
	}
	out, failed := netsh.New(run).Script(ctx, []string{portblocks.ListDynamic, portblocks.ListExcluded})
	if s.Ports, err = portblocks.ParseDynamic(out); err != nil {
		s.Unread = append(s.Unread, fmt.Sprintf("the dynamic port range: %v", errors.Join(err, failed)))
	}
	s.Ports.Excluded = portblocks.ParseExcluded(out)
	s.list(readListeners())
	rules, _ := netsh.New(run).Script(ctx, []string{netsh.Allowed(network.FirewallRule)}) // fails if there is no rule
	s.Admitted = strings.Contains(rules, network.FirewallRule)
	if name := s.Config.OwnNetwork(); name != "" {
		s.Own, s.OwnErr = hns.NewClient().Network(ctx, name)
	}
	return nil
}

// Classes of the tables (TCP_TABLE_CLASS and UDP_TABLE_CLASS of iprtrmib.h).
const (
	tcpOwnerListeners = 3 // TCP_TABLE_OWNER_PID_LISTENER
	udpOwners         = 1 // UDP_TABLE_OWNER_PID
)

// list stores the host's sockets and the error of reading them.
func (s *Symptoms) list(all []Listener, err error) {
	s.Listeners = all
	if err != nil {
		s.Unread = append(s.Unread, fmt.Sprintf("listening programs: %v", err))
	}
}

// readListeners reads the wildcard sockets of both families and protocols.
func readListeners() ([]Listener, error) {
	var all []Listener
	for _, t := range socketTables {
		table, err := t.read()
		if err != nil {
			return nil, fmt.Errorf("%s sockets: %w", t.protocol, err)
		}
		found, err := t.wildcards(table)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return named(all, programOf), nil
}

func (t socketTable) read() ([]byte, error) {
	iphlpapi := windows.NewLazySystemDLL("iphlpapi.dll")
	proc, class, family := iphlpapi.NewProc("GetExtendedTcpTable"), tcpOwnerListeners, windows.AF_INET
	if t.protocol == "UDP" {
		proc, class = iphlpapi.NewProc("GetExtendedUdpTable"), udpOwners
	}
	if t.six {
		family = windows.AF_INET6
	}
	if err := proc.Find(); err != nil {
		return nil, err
	}
	return readTable(func(buffer unsafe.Pointer, size *uint32) uintptr {
		code, _, _ := proc.Call(uintptr(buffer), uintptr(unsafe.Pointer(size)), 0, uintptr(family), uintptr(class), 0)
		return code
	})
}

// readTable calls a function of IP Helper until its buffer is large enough: new sockets may appear between two calls.
func readTable(call func(buffer unsafe.Pointer, size *uint32) uintptr) ([]byte, error) {
	size := uint32(1 << 14)
	for range 8 {
		table := make([]byte, size)
		switch code := syscall.Errno(call(unsafe.Pointer(&table[0]), &size)); code {
		case windows.ERROR_SUCCESS:
			return table, nil
		case windows.ERROR_INSUFFICIENT_BUFFER:
			size += size / 4
		default:
			return nil, code
		}
	}
	return nil, windows.ERROR_INSUFFICIENT_BUFFER
}

// programOf is the file name of a process's program; "" if Windows does not return it.
func programOf(process uint32) string {
	handle, err := windows.OpenProcess(windows.PROCESS_QUERY_LIMITED_INFORMATION, false, process)
	if err != nil {
		return ""
	}
	defer windows.CloseHandle(handle)
	name := make([]uint16, windows.MAX_LONG_PATH)
	size := uint32(len(name))
	if windows.QueryFullProcessImageName(handle, 0, &name[0], &size) != nil {
		return ""
	}
	return filepath.Base(windows.UTF16ToString(name[:size]))
}
