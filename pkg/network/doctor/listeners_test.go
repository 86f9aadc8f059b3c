package doctor

import (
	"encoding/binary"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

// rows makes a table as Windows lays it out.
func (t socketTable) rows(sockets ...netip.AddrPort) []byte {
	table := binary.LittleEndian.AppendUint32(nil, uint32(len(sockets)))
	for i, socket := range sockets {
		row := make([]byte, t.size)
		copy(row[t.address:], socket.Addr().AsSlice())
		binary.BigEndian.PutUint16(row[t.port:], socket.Port())
		binary.LittleEndian.PutUint32(row[t.process:], uint32(100+i))
		table = append(table, row...)
	}
	return append(table, make([]byte, 40)...) // the buffer is larger
}

// TestWildcards: of a table those sockets are listed that are at all addresses, and both families of one socket are one.
func TestWildcards(t *testing.T) {
	var all []Listener
	for _, one := range socketTables {
		at := []string{"0.0.0.0:445", "127.0.0.1:80", "0.0.0.0:3389"}
		if one.six {
			at = []string{"[::]:445", "[::1]:80", "[::]:3390"}
		}
		var sockets []netip.AddrPort
		for _, text := range at {
			sockets = append(sockets, netip.MustParseAddrPort(text))
		}
		found, err := one.wildcards(one.rows(sockets...))
		if err != nil || len(found) != 2 || found[0].Port != 445 || found[0].Process != 100 || found[1].Process != 102 {
			t.Errorf("%+v: %+v, %v", one, found, err)
		}
		all = append(all, found...)
		for _, cut := range []int{0, 3, 4 + one.size} {
			if _, err := one.wildcards(one.rows(sockets...)[:cut]); err == nil || !strings.Contains(err.Error(), "the table of "+one.protocol) {
				t.Errorf("%+v, cut to %d bytes: %v", one, cut, err)
			}
		}
	}
	asked := 0
	got := named(all, func(process uint32) string { asked++; return map[uint32]string{100: "a.exe"}[process] })
	want := []Listener{{"TCP", 445, 100, "a.exe"}, {"TCP", 3389, 102, ""}, {"TCP", 3390, 102, ""}, {"UDP", 445, 100, "a.exe"}, {"UDP", 3389, 102, ""}, {"UDP", 3390, 102, ""}}
	if !reflect.DeepEqual(got, want) || asked != 2 {
		t.Errorf("%+v, want %+v; asked %d times", got, want, asked)
	}
	if got := named([]Listener{{Protocol: "TCP", Port: 445, Process: kernelProcess}}, func(uint32) string { return "" }); got[0].Program != "System" {
		t.Errorf("the kernel's: %+v", got)
	}
}
