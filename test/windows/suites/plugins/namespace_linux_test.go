package plugins

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/winkube/winkube/test/output"
)

// namespace is a network namespace that represents a Windows host: its adapter "eth0" has the node's address, and Wine shows its interfaces to
// programs.
type namespace struct {
	*testing.T
	name string
}

// newNamespace creates a namespace and deletes it when the test ends.
func newNamespace(t *testing.T) *namespace {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: the host is a network namespace")
	}
	if os.Getenv("WINKUBE_WINE") == "" {
		t.Skip("needs Wine: run make test-windows, or set WINKUBE_WINE=1")
	}
	n := &namespace{t, fmt.Sprintf("wkp-%d", os.Getpid())}
	n.run("netns", "add", n.name)
	t.Cleanup(func() {
		if said, err := output.Of(exec.CommandContext(context.Background(), "ip", "netns", "del", n.name)); err != nil {
			t.Errorf("%v: %s", err, said)
		}
	})
	for _, line := range []string{"link set lo up", "link add eth0 type veth peer name beyond0", "link set beyond0 up", "link set eth0 address 00:15:5d:00:00:0c", "address add " + nodeAddress.String() + "/24 dev eth0",
		"link set eth0 up", "link add vEthernet type veth peer name beyond1", "link set beyond1 up", "link set vEthernet up"} {
		n.ip(line)
	}
	return n
}

func (n *namespace) run(args ...string) {
	n.Helper()
	if said, err := output.Of(exec.CommandContext(n.Context(), "ip", args...)); err != nil {
		n.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, said)
	}
}

func (n *namespace) ip(line string) {
	n.Helper()
	n.run(append([]string{"-n", n.name}, strings.Fields(line)...)...)
}

// mirror adds an address that HNS gave to the simulated host to the namespace: programs look for it on the adapters.
func (n *namespace) mirror(added bool, address netip.Prefix, _ string) {
	if address.Addr() == nodeAddress {
		return
	}
	if verb := map[bool]string{true: "add", false: "del"}[added]; n.Context().Err() == nil {
		n.ip("address " + verb + " " + address.String() + " dev vEthernet")
	}
}

// listen listens on loopback in the namespace. The socket stays in the namespace where it was created.
func (n *namespace) listen() net.Listener {
	n.Helper()
	type result struct {
		net.Listener
		error
	}
	made := make(chan result)
	go func() {
		runtime.LockOSThread() // without unlocking: the thread, which is in that namespace, ends with the goroutine
		file, err := os.Open("/run/netns/" + n.name)
		if err == nil {
			defer file.Close()
			err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
		}
		if err != nil {
			made <- result{error: err}
			return
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		made <- result{l, err}
	}()
	r := <-made
	if r.error != nil {
		n.Fatal(r.error)
	}
	return r.Listener
}
