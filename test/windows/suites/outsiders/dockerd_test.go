package outsiders

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"testing"

	"github.com/winkube/winkube/pkg/proxy/proxytest"
	"github.com/winkube/winkube/test/windows/moby"
	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/simulators/sim"
)

// image is the containers' image.
const image = "registry.test/base:1"

// daemon is a dockerd.exe on a host.
type daemon struct {
	*moby.Daemon
	*sim.World
}

// host returns a Windows host with the feature Containers, but without Docker.
func host(t *testing.T, r moby.Release) *daemon {
	t.Helper()
	p := rig.Test(t, r.Build)
	exe, err := r.Program(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{&moby.Daemon{Prefix: p, Exe: exe, Client: http.DefaultClient}, sim.New(r.Build, "Ethernet", "Ethernet 2")}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d.Serve(l)
	t.Cleanup(d.Close)
	if err := d.Install(t.Context(), p, l.Addr()); err != nil {
		t.Fatal(err)
	}
	if err := r.Prepare(t.Context(), p, moby.Image{Name: image, Cmd: []string{"cmd"}}); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{`C:\data`, `C:\logs`} {
		if err := p.Own(p.Path(dir)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(p.Path(`C:\data\hosts`), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("dockerd printed:\n%s\ncalls:\n%s", d.Output(), d.Log)
		}
	})
	return d
}

// start starts the daemon, which serves its pipe and a port for the test.
func (d *daemon) start(t *testing.T) {
	t.Helper()
	d.Daemon.Address = fmt.Sprintf("127.0.0.1:%d", proxytest.FreePort(t))
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if answer, err := d.Prefix.Ask(t.Context(), rig.DockerPipe, "/_ping"); err != nil || answer != "200 OK\n" {
		t.Errorf("the pipe answers %q, %v", answer, err)
	}
}
