package doctor

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Listener is a socket of Windows that takes what is sent to any address of the host, those of Services and hostPorts among them.
type Listener struct {
	Protocol string // TCP or UDP
	Port     uint16
	Process  uint32
	Program  string // svchost.exe; "": not known
}

// socketTable is how a table of iphlpapi.dll lays out its rows, in bytes: the rows of MIB_TCPTABLE_OWNER_PID, MIB_TCP6TABLE_OWNER_PID (tcpmib.h),
// MIB_UDPTABLE_OWNER_PID and MIB_UDP6TABLE_OWNER_PID (udpmib.h).
type socketTable struct {
	protocol               string
	six                    bool
	size                   int // of a row
	address, port, process int // their offsets
}

var socketTables = []socketTable{
	{protocol: "TCP", size: 24, address: 4, port: 8, process: 20},
	{protocol: "TCP", six: true, size: 56, address: 0, port: 20, process: 52},
	{protocol: "UDP", size: 12, address: 0, port: 4, process: 8},
	{protocol: "UDP", six: true, size: 28, address: 0, port: 20, process: 24},
}

// wildcards reads the sockets at all addresses out of a table, whose first four bytes are the count of rows.
func (t socketTable) wildcards(table []byte) (out []Listener, err error) {
	if len(table) < 4 {
		return nil, fmt.Errorf("the table of %s sockets has %d bytes, want 4 or more", t.protocol, len(table))
	}
	count, rows := int(binary.LittleEndian.Uint32(table)), table[4:]
	if count > len(rows)/t.size {
		return nil, fmt.Errorf("the table of %s sockets has %d bytes, which is too short for %d rows of %d", t.protocol, len(table), count, t.size)
	}
	width := 4
	if t.six {
		width = 16
	}
	for row := range slices.Chunk(rows[:count*t.size], t.size) {
		if addr, _ := netip.AddrFromSlice(row[t.address : t.address+width]); addr.IsUnspecified() {
			out = append(out, Listener{Protocol: t.protocol, Port: binary.BigEndian.Uint16(row[t.port:]), Process: binary.LittleEndian.Uint32(row[t.process:])})
		}
	}
	return out, nil
}

// kernelProcess is the process that owns the sockets of drivers: SMB's, and those of http.sys, by which WinRM and IIS listen.
const kernelProcess = 4

// named is one list of both families' sockets, by protocol and port, with the programs' names.
func named(all []Listener, program func(process uint32) string) []Listener {
	slices.SortFunc(all, func(a, b Listener) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Process, b.Process))
	})
	all = slices.Compact(all)
	names := map[uint32]string{kernelProcess: "System"}
	for i := range all {
		name, known := names[all[i].Process]
		if !known {
			name = program(all[i].Process)
			names[all[i].Process] = name
		}
		all[i].Program = name
	}
	return all
}

// windowsListeners lists what answers at all addresses. A Service's address, an external one or a hostPort with such a port meets it: Windows gives the
// port to the socket at the one address where it can, and http.sys lets no one else have it. Dynamic ports are only counted: no Service has one.
func windowsListeners(s Symptoms) []Finding {
	var items []string
	dynamic, protocol := 0, ""
	for _, l := range s.Listeners {
		if s.Ports.First > 0 && int(l.Port) >= s.Ports.First && int(l.Port) < s.Ports.First+s.Ports.Count {
			dynamic++
			continue
		}
		item := fmt.Sprint(l.Port)
		if l.Program != "" {
			item += " " + l.Program
		} else if l.Process != 0 {
			item += fmt.Sprintf(" process %d", l.Process)
		}
		if l.Protocol != protocol {
			item, protocol = l.Protocol+" "+item, l.Protocol
		}
		if len(items) == 0 || items[len(items)-1] != item { // several processes of one program
			items = append(items, item)
		}
	}
	if len(items) == 0 {
		return nil
	}
	text := strings.Join(items, ", ")
	if dynamic > 0 {
		text += fmt.Sprintf(", and %d dynamic ports", dynamic)
	}
	return []Finding{good("programs listening on all addresses; a hostPort or Service on the same port may conflict: %s", text)}
}
