package outsiders

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/winkube/winkube/pkg/proxy/proxytest"
	"github.com/winkube/winkube/test/output"
	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/simulators/sim"
)

// release is one version of dockerd.exe, by the name of its module in hack/tools, and the Windows Server that runs it here.
type release struct {
	name  string
	build int
}

var releases = []release{{"dockerd-25", 17763}, {"dockerd-28", 26100}, {"dockerd-29", 20348}}

// program returns the program, building it if it is missing.
func (r release) program(t *testing.T) string {
	t.Helper()
	root, err := rig.Root()
	if err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(root, "_output/tools/windows", r.name+".exe")
	if _, err := os.Stat(exe + ".manifest"); err == nil {
		return exe
	}
	overlay, err := rig.Overlay(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), filepath.Join(root, "hack/dockerd.sh"), r.name, overlay)
	if said, err := output.Of(build); err != nil {
		t.Fatalf("cannot build %s.exe: %v: %s", r.name, err, said)
	}
	return exe
}

// daemon is a dockerd.exe on a host.
type daemon struct {
	*sim.World
	prefix *rig.Prefix
	exe    string
	url    string

	mu   sync.Mutex
	said bytes.Buffer
	stop func()
}

func (d *daemon) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.said.Write(p)
}

func (d *daemon) output() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.said.String()
}

// host returns a Windows host with the feature Containers, but without Docker.
func host(t *testing.T, r release) *daemon {
	t.Helper()
	p := rig.Test(t, r.build)
	d := &daemon{World: sim.New(r.build, "Ethernet", "Ethernet 2"), prefix: p, exe: r.program(t)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d.Serve(l)
	t.Cleanup(d.Close)
	if err := d.Install(t.Context(), p, l.Addr()); err != nil {
		t.Fatal(err)
	}
	const key = `HKEY_LOCAL_MACHINE\Software\Microsoft\Windows NT\CurrentVersion` // pkg/parsers/kernel reads it
	if err := p.SetRegistry(t.Context(), key, "BuildLabEx", strconv.Itoa(r.build)+".1.amd64fre.release"); err != nil {
		t.Fatal(err)
	}
	for _, service := range []string{"hns", "vmcompute"} { // checkSystem requires both services
		if _, err := p.Run(t.Context(), "sc.exe", "create", service, "binPath=", `C:\windows\system32\svchost.exe`); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{`C:\data`, `C:\logs`} {
		if err := p.Own(p.Path(dir)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(p.Path(`C:\data\hosts`), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := d.seed(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if d.stop != nil {
			d.stop()
		}
		if t.Failed() {
			t.Logf("dockerd printed:\n%s\ncalls:\n%s", d.output(), d.Log)
		}
	})
	return d
}

// start starts the daemon and waits until it serves its pipe and a port for the test.
func (d *daemon) start(t *testing.T) {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", proxytest.FreePort(t))
	d.url = "http://" + address
	ctx, ended := context.WithCancelCause(t.Context())
	cmd := d.prefix.Command(t.Context(), d.exe, "-H", "npipe://", "-H", "tcp://"+address, "--data-root", `C:\docker`, "--storage-opt", "size=0", "--tls=false", "-D")
	cmd.Stdout, cmd.Stderr = d, d
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended(fmt.Errorf("dockerd ended: %w", cmd.Wait()))
	}()
	d.stop = func() { // like the service manager: dockerd.exe stops its containers
		d.stop = nil
		_ = cmd.Process.Signal(os.Interrupt)
		select {
		case <-done:
		case <-time.After(3 * time.Minute):
			t.Error("dockerd.exe did not stop within three minutes")
			_ = cmd.Process.Kill()
			<-done
		}
	}
	for {
		if response, err := http.Get(d.url + "/_ping"); err == nil {
			_ = response.Body.Close()
			break
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("%v", context.Cause(ctx))
		}
	}
	// Prepare the pipe for other Windows clients.
	if err := d.prefix.TakeFirst(t.Context(), rig.DockerPipe); err != nil {
		t.Fatal(err)
	}
	if answer, err := d.prefix.Ask(t.Context(), rig.DockerPipe, "/_ping"); err != nil || answer != "200 OK\n" {
		t.Errorf("the pipe answers %q, %v", answer, err)
	}
}
