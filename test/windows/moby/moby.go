// Package moby runs moby's dockerd.exe, built from its module without a change, in a prefix of the rig with the simulators. Its images are written
// into its store.
//
//	hack/tools/dockerd-* --> Release.Program --> Daemon on drive C: --shims--> HNS, HCS of package sim
package moby

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/winkube/winkube/test/output"
	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/simulators/hcs"
)

// DataRoot is where the daemon keeps images and containers.
const DataRoot = `C:\docker`

// Release is one version of dockerd.exe, by the name of its module in hack/tools, and the Windows Server that runs it here.
type Release struct {
	Name  string
	Build int
}

// Releases are the versions that the rig runs, each on another Server.
var Releases = []Release{{"dockerd-25", 17763}, {"dockerd-28", 26100}, {"dockerd-29", 20348}}

// Of returns the version that a build of Windows runs; ok is false if there is none.
func Of(build int) (r Release, ok bool) {
	for _, one := range Releases {
		if one.Build == build {
			return one, true
		}
	}
	return r, false
}

// Program returns the path of the program, building it if it is missing.
func (r Release) Program(ctx context.Context) (string, error) {
	root, err := rig.Root()
	if err != nil {
		return "", err
	}
	exe := filepath.Join(root, "_output/tools/windows", r.Name+".exe")
	if _, err := os.Stat(exe + ".manifest"); err == nil {
		return exe, nil
	}
	overlay, err := rig.Overlay(ctx)
	if err != nil {
		return "", err
	}
	build := exec.CommandContext(ctx, filepath.Join(root, "hack/dockerd.sh"), r.Name, overlay)
	if said, err := output.Of(build); err != nil {
		return "", fmt.Errorf("cannot build %s.exe: %w: %s", r.Name, err, said)
	}
	return exe, nil
}

// Prepare makes a prefix a host with the feature Containers, whose services the daemon looks for, and the images. The prefix has the simulators
// already.
func (r Release) Prepare(ctx context.Context, p *rig.Prefix, images ...Image) error {
	const key = `HKEY_LOCAL_MACHINE\Software\Microsoft\Windows NT\CurrentVersion` // pkg/parsers/kernel reads it
	if err := p.SetRegistry(ctx, key, "BuildLabEx", strconv.Itoa(r.Build)+".1.amd64fre.release"); err != nil {
		return err
	}
	for _, name := range []string{"hns", "vmcompute"} { // checkSystem requires both services
		if err := p.InstallService(ctx, name); err != nil {
			return err
		}
	}
	return Seed(p, images...)
}

// MountVolumes gives the volumes of containers a directory each, which is empty: the daemon copies files into a container that has not started. The
// error is reported to failed.
func MountVolumes(h *hcs.HCS, p *rig.Prefix, failed func(...any)) {
	h.OnVolume = func(volume string, there bool) {
		if err := p.MountVolume(volume, `C:\volumes\`+strings.Trim(volume, `\?`), there); err != nil {
			failed(err)
		}
	}
}

// Daemon is a dockerd.exe in a prefix.
type Daemon struct {
	Prefix *rig.Prefix
	Exe    string
	// Address is where it listens beside its pipe, for the test: HOST:PORT in the prefix's network, which Client reaches.
	Address string
	Client  *http.Client

	mu   sync.Mutex
	said bytes.Buffer
	cmd  *exec.Cmd
	done chan struct{}
}

// Write collects what the daemon prints.
func (d *Daemon) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.said.Write(p)
}

// Output returns what the daemon has printed since it was first started.
func (d *Daemon) Output() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.said.String()
}

// URL is the daemon's address for the test.
func (d *Daemon) URL() string { return "http://" + d.Address }

// Start starts the daemon and waits until it serves its pipe and its address.
func (d *Daemon) Start(ctx context.Context) error {
	// A service writes no PID file (moby cmd/dockerd/docker_windows.go), but this program does. One that was killed leaves it, and Wine has its number
	// again soon.
	for _, dir := range []string{DataRoot, `C:\ProgramData\docker`} {
		if err := os.Remove(d.Prefix.Path(dir + `\docker.pid`)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	ended, failed := context.WithCancelCause(ctx)
	defer failed(nil)
	d.cmd = d.Prefix.Command(context.WithoutCancel(ctx), d.Exe, "-H", "npipe://", "-H", "tcp://"+d.Address, "--data-root", DataRoot, "--storage-opt", "size=0", "--tls=false", "-D")
	d.cmd.Stdout, d.cmd.Stderr = d, d
	if err := d.cmd.Start(); err != nil {
		return err
	}
	done, cmd := make(chan struct{}), d.cmd
	d.done = done
	go func() {
		defer close(done)
		failed(fmt.Errorf("dockerd ended: %w", cmd.Wait()))
	}()
	// Prepare the pipe for other Windows clients, before one of them comes.
	taken := make(chan error, 1)
	go func() { taken <- d.Prefix.TakeFirst(ctx, rig.DockerPipe) }()
	select {
	case err := <-taken:
		if err != nil {
			return err
		}
	case <-ended.Done():
		return context.Cause(ended)
	}
	for {
		if response, err := d.Client.Get(d.URL() + "/_ping"); err == nil {
			return response.Body.Close()
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ended.Done():
			return context.Cause(ended)
		}
	}
}

// Running reports whether the daemon was started and has not ended.
func (d *Daemon) Running() bool {
	if d.done == nil {
		return false
	}
	select {
	case <-d.done:
		return false
	default:
		return true
	}
}

// Stop stops the daemon like the service manager: it stops its containers.
func (d *Daemon) Stop() error {
	if !d.Running() {
		return nil
	}
	_ = d.cmd.Process.Signal(os.Interrupt)
	select {
	case <-d.done:
		return nil
	case <-time.After(3 * time.Minute):
		d.Kill()
		return fmt.Errorf("dockerd.exe did not stop within three minutes")
	}
}

// Kill ends the daemon as kill -9 does.
func (d *Daemon) Kill() {
	if d.Running() {
		_ = d.cmd.Process.Kill()
		<-d.done
	}
}
