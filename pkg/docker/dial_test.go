package docker

import (
	"net"
	"net/netip"
	"runtime"
	"testing"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/pod"
)

// TestDialOwnEndpoint: on overlays and on l2bridge networks of Server 2019 the kubelet creates the pods' endpoints, and the engine's container has no
// network. Its ports are reached at the pod's address, which the kubelet knows.
func TestDialOwnEndpoint(t *testing.T) {
	if runtime.GOOS != "windows" {
		t.Skip("on Linux ports are reached from inside the container's network")
	}
	r := fakeRig(t, dockertest.Options{OS: "windows", Build: 17763}, nil)
	p := r.pod("dial", []string{"pause"})
	r.apply(p, pod.Step{Action: pod.CreateSandbox, Sandbox: &pod.SandboxInputs{Network: "none", Hostname: p.Name}})
	sandbox := r.observed(p).Sandboxes[0].ID
	r.apply(p, r.step(p, 0, sandbox))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	at := listener.Addr().(*net.TCPAddr).AddrPort()
	for _, target := range []string{sandbox, r.container(p, "c0").ID} { // the container shares the sandbox's network
		if _, err := r.Dial(t.Context(), target, nil, int(at.Port())); err == nil {
			t.Error("the engine knows an address: this test proves nothing")
		}
		conn, err := r.Dial(t.Context(), target, []netip.Addr{at.Addr()}, int(at.Port()))
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
}
