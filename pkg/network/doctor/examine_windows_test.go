package doctor

import (
	"net"
	"slices"
	"testing"

	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"

	"github.com/winkube/winkube/pkg/network"
)

// TestExamineRefused: what IP Helper refuses is reported as unread, and the rest is read.
func TestExamineRefused(t *testing.T) {
	t.Setenv("WINKUBE_REFUSE", "GetIfTable2Ex") // for the simulator of IP Helper: Windows itself refuses nothing on request
	if _, err := winipcfg.GetIfTable2Ex(winipcfg.MibIfEntryNormal); err == nil {
		t.Skip("this IP Helper refuses nothing on request")
	}
	s := Symptoms{Config: network.Config{Mode: network.Overlay}}
	if err := Examine(t.Context(), &s); err != nil || len(s.Unread) == 0 {
		t.Errorf("%v, unread %q", err, s.Unread)
	}
}

// TestReadListeners: a wildcard socket of this program is found with the program's name, one at a single address is not.
func TestReadListeners(t *testing.T) {
	wild, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer wild.Close()
	single, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer single.Close()
	packets, err := net.ListenPacket("udp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	list, err := readListeners()
	if err != nil {
		t.Fatal(err)
	}
	find := func(protocol string, port int) int {
		return slices.IndexFunc(list, func(l Listener) bool { return l.Protocol == protocol && int(l.Port) == port })
	}
	for protocol, port := range map[string]int{"TCP": wild.Addr().(*net.TCPAddr).Port, "UDP": packets.LocalAddr().(*net.UDPAddr).Port} {
		i := find(protocol, port)
		if i < 0 || list[i].Process != 0 && list[i].Program != "doctor.test.exe" { // Wine does not always find the process
			t.Errorf("%s %d is not in %+v as this program's", protocol, port, list)
		}
	}
	if find("TCP", single.Addr().(*net.TCPAddr).Port) >= 0 {
		t.Errorf("a socket at one address is in %+v", list)
	}
}
