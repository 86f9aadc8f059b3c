package learn

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
)

// dnsServer answers each query through TCP with one PTR record, as CoreDNS does for a Service's address.
func dnsServer(t *testing.T, name string) netip.AddrPort {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go answerPTR(conn, name)
		}
	}()
	return netip.MustParseAddrPort(listener.Addr().String())
}

func answerPTR(conn net.Conn, name string) {
	defer conn.Close()
	var length uint16
	if binary.Read(conn, binary.BigEndian, &length) != nil {
		return
	}
	q := make([]byte, length)
	if _, err := io.ReadFull(conn, q); err != nil {
		return
	}
	end := 12
	for q[end] != 0 {
		end += int(q[end]) + 1
	}
	end += 5 // the root, type and class
	var rdata []byte
	for label := range strings.SplitSeq(name, ".") {
		rdata = append(append(rdata, byte(len(label))), label...)
	}
	rdata = append(rdata, 0)
	reply := append([]byte{q[0], q[1], 0x84, 0, 0, 1, 0, 1, 0, 0, 0, 0}, q[12:end]...)
	reply = append(reply, 0xc0, 12, 0, 12, 0, 1, 0, 0, 0, 5, 0, byte(len(rdata)))
	reply = append(reply, rdata...)
	_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
}

func TestAsk(t *testing.T) {
	for name, want := range map[string]string{
		"kubernetes.default.svc.corp.example": "corp.example", "Kubernetes.default.svc.Cluster.Local": "cluster.local",
		"kubernetes.default.svc": "", "web.shop.svc.cluster.local": "",
	} {
		got, err := ask(t.Context(), dnsServer(t, name), netip.MustParseAddr("10.96.0.1"))
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
	if _, err := Ask(t.Context(), netip.Addr{}, netip.Addr{}); err == nil || !strings.Contains(err.Error(), "there is no cluster DNS") {
		t.Errorf("%v", err)
	}
}
