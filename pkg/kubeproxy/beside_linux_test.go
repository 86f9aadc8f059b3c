package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/connect"
	"github.com/winkube/winkube/pkg/proxy/proxytest"
	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/epoll"
	"github.com/winkube/winkube/pkg/proxy/relay/relaytest"
)

// besideHost is a host on which BPF programs handle connections, and the relay serves the rest.
type besideHost struct {
	*relaytest.Host
	kernel *countedKernel
	cgroup string
}

// countedKernel counts changes of maps, and makes one in ten fail where the relay's calls may fail. It may refuse
// calls.
type countedKernel struct {
	connect.Kernel
	writes   int
	inject   bool
	refusals refusals
}

// refusals are what a kernel refuses: loading programs, taking over what a previous proxy left, and all fronts.
type refusals struct{ open, attach, fronts error }

func (k *countedKernel) Open() error {
	if k.refusals.open != nil {
		return k.refusals.open
	}
	return k.Kernel.Open()
}

func (k *countedKernel) Attach() error {
	if k.refusals.attach != nil {
		return k.refusals.attach
	}
	return k.Kernel.Attach()
}

func (k *countedKernel) Do(op connect.Op) error {
	if k.refusals.fronts != nil && op.Kind == connect.PutFront {
		return k.refusals.fronts
	}
	if k.refusals == (refusals{}) {
		k.writes++ // refused calls are retried
	}
	if k.inject && op.Kind != connect.DeleteFront && proxytest.OneInTen() {
		return errors.New("injected failure of a BPF map")
	}
	return k.Kernel.Do(op)
}

func (h *besideHost) Writes() int { return h.Host.Writes() + h.kernel.writes }

func (h *besideHost) Inject(on bool) {
	h.kernel.inject = on
	h.Host.Inject(on)
}

func (h *besideHost) Traces(t *testing.T) []string {
	out := h.Host.Traces(t)
	if contents, err := h.kernel.Read(); err == nil {
		out = append(out, fmt.Sprint(contents.Fronts, contents.Slots, contents.Members))
	}
	if info, err := os.Stat(h.cgroup); err == nil {
		pins, _ := filepath.Glob(fmt.Sprintf("/sys/fs/bpf/winkube-proxy/%d", info.Sys().(*syscall.Stat_t).Ino))
		out = append(out, pins...)
	}
	return out
}

// TestBesideRelay runs the suite of all back ends with both. It skips, with the kernel's reason, if the kernel does not
// accept the programs.
func TestBesideRelay(t *testing.T) {
	if decided := runBeside(t, besideCgroup(t), refusals{}); decided == 0 {
		t.Error("no connection was decided by the programs")
	}
}

// TestRelayServesWhatIsRefused: whatever a kernel refuses, everything is served as with both.
func TestRelayServesWhatIsRefused(t *testing.T) {
	cgroup, refused := besideCgroup(t), errors.New("refused by the test")
	for what, refuses := range map[string]refusals{"open": {open: refused}, "attach": {attach: refused}, "fronts": {fronts: refused}} {
		t.Run(what, func(t *testing.T) {
			if decided := runBeside(t, cgroup, refuses); decided > 0 && what != "attach" { // refused only after the maps are filled
				t.Errorf("%d connections were decided by programs", decided)
			}
		})
	}
}

// besideCgroup returns a cgroup of version 2 that contains the test until it ends.
func besideCgroup(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	roots, err := filepath.Glob("/sys/fs/cgroup/unified/cgroup.procs")
	if len(roots) == 0 {
		roots, err = filepath.Glob("/sys/fs/cgroup/cgroup.procs")
	}
	if err != nil || len(roots) == 0 {
		t.Skip("needs a mounted cgroup2 file system")
	}
	root := filepath.Dir(roots[0])
	cgroup := filepath.Join(root, fmt.Sprintf("winkube-beside-%d", os.Getpid()))
	if err := os.Mkdir(cgroup, 0o755); err != nil {
		t.Skip(err)
	}
	move := func(to string) error {
		return os.WriteFile(filepath.Join(to, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
	}
	t.Cleanup(func() {
		if err := errors.Join(move(root), os.Remove(cgroup)); err != nil {
			t.Error(err)
		}
	})
	if err := move(cgroup); err != nil {
		t.Skip(err)
	}
	probe := connect.NewKernel(cgroup)
	if err := probe.Open(); err != nil {
		t.Skipf("cannot decide at connect here: %v", err)
	}
	if err := probe.Remove(); err != nil {
		t.Fatal(err)
	}
	return cgroup
}

// runBeside runs the suite, and returns how many connections the programs have decided.
func runBeside(t *testing.T, cgroup string, refuses refusals) (decided uint64) {
	subject := relaytest.Subject{New: epoll.New(runtime.GOMAXPROCS(0)), Refuses: true, Leads: func() bool { return true }, Traces: func(relay.Plane) []string { return nil }}
	proxytest.Run(t, func(t *testing.T) (proxy.Backend, proxytest.Host) {
		h := &besideHost{relaytest.NewHost(t, subject), &countedKernel{Kernel: connect.NewKernel(cgroup), refusals: refuses}, cgroup}
		b := connect.New(h.kernel, connect.Limits{})
		t.Cleanup(func() {
			tcp, udp, refused := h.kernel.Decisions()
			decided += tcp + udp + refused
			if err := b.Sync(context.Background(), &proxy.Table{}, nil); err != nil {
				t.Error(err)
			}
			b.Close()
		})
		return Beside{First: b, Rest: h.Relay}, h
	})
	return decided
}
