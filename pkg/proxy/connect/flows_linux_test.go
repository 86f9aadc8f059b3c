package connect

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"github.com/winkube/winkube/pkg/command"
)

// flowClient names the address at which a test waits for its client.
const flowClient = "WINKUBE_FLOW_CLIENT"

// TestFlowClient is the client of TestFlowEnds, in a separate program.
func TestFlowClient(t *testing.T) {
	if os.Getenv(flowClient) == "" {
		t.Skip("TestFlowEnds runs it")
	}
	flows := map[string]net.Conn{}
	for _, addr := range []string{"10.96.0.1:53", "10.96.0.2:53", "10.1.0.2:53", "[fd96::1]:53"} {
		c, err := net.Dial("udp", addr)
		if err != nil {
			t.Fatal(err)
		}
		question(c)
		flows[addr] = c
	}
	tell, err := net.Dial("tcp", os.Getenv(flowClient))
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{"10.96.0.1:53", "[fd96::1]:53"} {
		_ = flows[addr].SetReadDeadline(time.Now().Add(patience))
		_, err := flows[addr].Read(make([]byte, 64))
		fmt.Fprintf(tell, "%s: %s\n", addr, reason(err))
	}
	for _, addr := range []string{"10.96.0.2:53", "10.1.0.2:53"} {
		fmt.Fprintf(tell, "%s: %s\n", addr, question(flows[addr]))
	}
	fmt.Fprintf(tell, "again: %s\n", ask("udp", "10.96.0.1:53", nil))
	tell.Close()
}

// TestFlowEnds: the connected UDP socket of a client whose endpoint is gone is closed, in any network namespace, and no
// other socket.
func TestFlowEnds(t *testing.T) {
	h := newHost(t)
	if err := canEndFlows(); err != nil {
		t.Skipf("cannot end flows here: %v", err)
	}
	for _, addr := range []string{"10.1.0.2:53", "10.1.0.3:53", "[fd01::2]:53"} {
		h.serve(t, h.pods, addr)
	}
	stays := route("b 10.96.0.2:53 10.1.0.2:53", udp)
	h.to(t, route("a 10.96.0.1:53 10.1.0.2:53", udp), stays, route("c [fd96::1]:53 [fd01::2]:53", udp))
	l, err := net.Listen("tcp", "10.1.0.1:7")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Setenv(flowClient, "10.1.0.1:7")
	ended := make(chan error)
	go func() {
		runtime.LockOSThread() // the program starts in this thread's namespace
		err := netns.Set(h.own)
		if err == nil {
			_, err = command.New().Run(context.Background(), nil, os.Args[0], "-test.run=^TestFlowClient$")
		}
		ended <- err
	}()
	client, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	h.to(t, route("a 10.96.0.1:53 10.1.0.3:53", udp), stays)
	heard, err := io.ReadAll(client)
	expect(t, "the client met", fmt.Sprint(string(heard), err, <-ended), `10.96.0.1:53: software caused connection abort
[fd96::1]:53: software caused connection abort
10.96.0.2:53: 10.1.0.2:53 10.1.0.1
10.1.0.2:53: 10.1.0.2:53 10.1.0.1
again: 10.1.0.3:53 10.1.0.1
<nil> <nil>`)
	left := map[uint64]pair{}
	if err := readAll(h.kernel.maps["connected"], left); err != nil || len(left) > 0 {
		t.Errorf("all sockets are closed, and the map has %v, %v", left, err)
	}
}
