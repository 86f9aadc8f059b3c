package plugins_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/winkube/winkube/pkg/plugins"
	"github.com/winkube/winkube/pkg/plugins/pluginstest"
)

const patience = time.Minute

// handler records what is registered, as lines.
type handler struct {
	lines chan string
	mu    sync.Mutex
	fails []error
}

func newHandler() *handler { return &handler{lines: make(chan string, 100)} }

func (h *handler) Register(_ context.Context, p plugins.Plugin) (func(), error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.fails) > 0 {
		err := h.fails[0]
		h.fails = h.fails[1:]
		return nil, err
	}
	what := p.Name + " " + strings.Join(p.Versions, ",") + " " + filepath.Base(p.Endpoint)
	h.lines <- "+ " + what
	return func() { h.lines <- "- " + what }, nil
}

func (h *handler) expect(t *testing.T, want ...string) {
	t.Helper()
	for _, line := range want {
		select {
		case got := <-h.lines:
			if got != line {
				t.Fatalf("got %q, want %q", got, line)
			}
		case <-time.After(patience):
			t.Fatalf("got nothing, want %q", line)
		}
	}
}

func (h *handler) expectNothing(t *testing.T) {
	t.Helper()
	select {
	case got := <-h.lines:
		t.Fatalf("got %q, want nothing", got)
	default:
	}
}

func info(name, endpoint string) *registration.PluginInfo {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: name, Endpoint: endpoint, SupportedVersions: []string{"1.0.0"}}
}

type fixture struct {
	*handler
	dir   string
	clock *testingclock.FakeClock
	stop  func() // of the watcher
}

// start runs a watcher until the test ends.
func start(t *testing.T, windows bool, prepare func(dir string)) *fixture {
	t.Helper()
	return startWith(t, plugins.Config{Windows: windows}, prepare)
}

func startWith(t *testing.T, cfg plugins.Config, prepare func(dir string)) *fixture {
	t.Helper()
	f := &fixture{handler: newHandler(), dir: filepath.Join(t.TempDir(), "reg"), clock: testingclock.NewFakeClock(time.Unix(0, 0))}
	if prepare != nil {
		if err := os.MkdirAll(f.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		prepare(f.dir)
	}
	cfg.Dir, cfg.Handlers, cfg.Clock = f.dir, map[string]plugins.Handler{registration.CSIPlugin: f.handler}, f.clock
	watcher := plugins.New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- watcher.Run(ctx) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(patience):
			t.Error("the watcher did not end")
		}
	})
	t.Cleanup(f.stop)
	return f
}

// step lets the watcher's pauses pass.
func (f *fixture) step(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(patience); !f.clock.HasWaiters(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the watcher does not wait before it tries again")
		}
	}
	f.clock.Step(time.Minute)
}

// serve makes the socket elsewhere and moves it to path: it appears when it is listened at, so that no attempt to connect is refused.
func serve(t *testing.T, p *pluginstest.Plugin, path string) (stop func()) {
	t.Helper()
	return serveMade(t, p, path, time.Time{})
}

// serveMade is serve with a socket of that time; zero: of now.
func serveMade(t *testing.T, p *pluginstest.Plugin, path string, at time.Time) (stop func()) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	made := filepath.Join(t.TempDir(), "s")
	listener := listen(t, made)
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	end := p.ServeOn(listener)
	stop = sync.OnceFunc(func() {
		os.Remove(path)
		end()
	})
	t.Cleanup(stop)
	if !at.IsZero() {
		if err := os.Chtimes(made, at, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(made, path); err != nil {
		t.Fatal(err)
	}
	return stop
}

func status(t *testing.T, p *pluginstest.Plugin) *registration.RegistrationStatus {
	t.Helper()
	select {
	case s := <-p.Statuses:
		return s
	case <-time.After(patience):
		t.Fatal("the plugin was not told what came of its registration")
		return nil
	}
}

func TestSocketsOfAllAges(t *testing.T) {
	before := pluginstest.New(info("before", ""))
	f := start(t, false, func(dir string) { serve(t, before, filepath.Join(dir, "a.sock")) })
	f.expect(t, "+ before 1.0.0 a.sock")
	if s := status(t, before); !s.PluginRegistered || s.Error != "" {
		t.Errorf("the plugin was told %v", s)
	}
	later := pluginstest.New(info("later", "/csi/csi.sock"))
	stop := serve(t, later, filepath.Join(f.dir, "deeper", "down", "b.sock"))
	f.expect(t, "+ later 1.0.0 csi.sock")
	status(t, later)
	stop()
	f.expect(t, "- later 1.0.0 csi.sock")
	f.stop()
	f.expect(t, "- before 1.0.0 a.sock")
}

func TestFilesThatAreNoPlugins(t *testing.T) {
	f := start(t, false, func(dir string) {
		serve(t, pluginstest.New(info("hidden", "")), filepath.Join(dir, ".hidden.sock"))
		serve(t, pluginstest.New(info("below", "")), filepath.Join(dir, ".hidden", "below.sock"))
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	serve(t, pluginstest.New(info("real", "")), filepath.Join(f.dir, "zz.sock"))
	f.expect(t, "+ real 1.0.0 zz.sock")
	f.expectNothing(t)
}

// TestReplacedWithoutGap: a driver that is upgraded is never unknown in between.
func TestReplacedWithoutGap(t *testing.T) {
	f := start(t, false, nil)
	path := filepath.Join(f.dir, "a.sock")
	serve(t, pluginstest.New(info("disk", "old.sock")), path)
	f.expect(t, "+ disk 1.0.0 old.sock")
	serve(t, pluginstest.New(info("disk", "new.sock")), path)
	f.expect(t, "+ disk 1.0.0 new.sock", "- disk 1.0.0 old.sock")
}

// TestReplacedWithinATick: the kernel's clock for times of files has ticks of some milliseconds, so a socket's successor may have its time.
func TestReplacedWithinATick(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("times of files have 100 ns there")
	}
	f := start(t, false, nil)
	path, at := filepath.Join(f.dir, "a.sock"), time.Now().Add(-time.Minute)
	serveMade(t, pluginstest.New(info("disk", "old.sock")), path, at)
	f.expect(t, "+ disk 1.0.0 old.sock")
	stop := serveMade(t, pluginstest.New(info("disk", "new.sock")), path, at)
	f.expect(t, "+ disk 1.0.0 new.sock", "- disk 1.0.0 old.sock")
	stop()
	serveMade(t, pluginstest.New(info("disk", "last.sock")), path, at) // it may have the file's number, too
	var lines []string
	for range 2 { // in the order in which the watch is read
		select {
		case line := <-f.lines:
			lines = append(lines, line)
		case <-time.After(patience):
			t.Fatalf("got %q, want last.sock as well", lines)
		}
	}
	if slices.Sort(lines); !slices.Equal(lines, []string{"+ disk 1.0.0 last.sock", "- disk 1.0.0 new.sock"}) {
		t.Errorf("got %q", lines)
	}
}

func listen(t *testing.T, path string) net.Listener {
	t.Helper()
	pluginstest.NeedsSockets(t)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

func TestHangingPluginDelaysNoOther(t *testing.T) {
	f := start(t, false, nil)
	hung := pluginstest.New(info("hung", ""))
	hung.Hang = true
	serve(t, hung, filepath.Join(f.dir, "a.sock"))
	<-hung.Asked
	serve(t, pluginstest.New(info("other", "")), filepath.Join(f.dir, "b.sock"))
	f.expect(t, "+ other 1.0.0 b.sock")
	f.stop()
	f.expect(t, "- other 1.0.0 b.sock")
}

func TestUnknownTypeIsRefusedOnce(t *testing.T) {
	f := start(t, false, nil)
	device := pluginstest.New(&registration.PluginInfo{Type: registration.DevicePlugin, Name: "gpu"})
	path := filepath.Join(f.dir, "gpu.sock")
	serve(t, device, path)
	want := "RegisterPlugin error -- no handler registered for plugin type: DevicePlugin at socket " + path
	if s := status(t, device); s.PluginRegistered || s.Error != want {
		t.Errorf("the plugin was told %v, want %q", s, want)
	}
	serve(t, pluginstest.New(info("other", "")), filepath.Join(f.dir, "other.sock"))
	f.expect(t, "+ other 1.0.0 other.sock")
	if len(device.Asked) != 1 {
		t.Errorf("it was asked %d times, want once", len(device.Asked))
	}
}

func TestFailuresAreReportedAndRetried(t *testing.T) {
	f := start(t, false, nil)
	f.fails = []error{errors.New("it answers nonsense")}
	p := pluginstest.New(info("disk", ""))
	serve(t, p, filepath.Join(f.dir, "a.sock"))
	if s := status(t, p); s.PluginRegistered || s.Error != "RegisterPlugin error -- plugin registration failed with err: it answers nonsense" {
		t.Errorf("the plugin was told %v", s)
	}
	f.step(t)
	f.expect(t, "+ disk 1.0.0 a.sock")
	if s := status(t, p); !s.PluginRegistered {
		t.Errorf("the plugin was told %v", s)
	}
}

// TestUnheardSuccess: a plugin that does not accept the good news is not registered.
func TestUnheardSuccess(t *testing.T) {
	f := start(t, false, nil)
	p := pluginstest.New(info("disk", ""))
	p.FailNotify = 1
	serve(t, p, filepath.Join(f.dir, "a.sock"))
	f.expect(t, "+ disk 1.0.0 a.sock", "- disk 1.0.0 a.sock")
	f.step(t)
	f.expect(t, "+ disk 1.0.0 a.sock")
}

// TestStaleSocket: what a killed driver left is asked again, and the driver registers when it is back.
func TestStaleSocket(t *testing.T) {
	f := start(t, false, func(dir string) {
		listener := listen(t, filepath.Join(dir, "a.sock"))
		listener.(*net.UnixListener).SetUnlinkOnClose(false)
		listener.Close()
	})
	f.step(t)
	path := filepath.Join(f.dir, "a.sock")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	serve(t, pluginstest.New(info("disk", "")), path)
	f.expect(t, "+ disk 1.0.0 a.sock")
}

// TestDirectoryRemoved: the directory is made again, also if the watch was lost with it.
func TestDirectoryRemoved(t *testing.T) {
	f := startWith(t, plugins.Config{Relist: time.Second}, nil)
	path := filepath.Join(f.dir, "a.sock")
	serve(t, pluginstest.New(info("disk", "")), path)
	f.expectStepping(t, "+ disk 1.0.0 a.sock")
	if err := os.RemoveAll(f.dir); err != nil {
		t.Fatal(err)
	}
	f.expectStepping(t, "- disk 1.0.0 a.sock")
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(f.dir); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
		f.clock.Step(time.Second)
	}
	serve(t, pluginstest.New(info("again", "")), filepath.Join(f.dir, "b.sock"))
	f.expectStepping(t, "+ again 1.0.0 b.sock")
}

// expectStepping is expect while time passes.
func (f *fixture) expectStepping(t *testing.T, want string) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		select {
		case got := <-f.lines:
			if got != want {
				t.Fatalf("got %q, want %q", got, want)
			}
			return
		case <-time.After(10 * time.Millisecond):
			f.clock.Step(time.Second)
		}
	}
	t.Fatalf("got nothing, want %q", want)
}

// TestSocketsThatLookLikeFiles: on Windows an ordinary file is asked a few times, and a real socket registers.
func TestSocketsThatLookLikeFiles(t *testing.T) {
	f := start(t, true, func(dir string) {
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		serve(t, pluginstest.New(info("disk", "")), filepath.Join(dir, "disk.sock"))
	})
	f.expect(t, "+ disk 1.0.0 disk.sock")
	for range 4 {
		f.step(t)
	}
	f.stop()
	if f.clock.HasWaiters() {
		t.Error("the file is still asked after five attempts")
	}
}

// TestOverAnotherWire: where there are no Unix sockets, as under Wine, tests have the whole registration by another wire.
func TestOverAnotherWire(t *testing.T) {
	f := startWith(t, plugins.Config{Windows: true, Relist: time.Second, Wire: pluginstest.Loopback}, func(string) {})
	serve := func(name, endpoint string) (p *pluginstest.Plugin, stop func()) {
		listener, err := pluginstest.ListenLoopback(t.Context(), filepath.Join(f.dir, name+"-reg.sock"))
		if err != nil {
			t.Fatal(err)
		}
		p = pluginstest.New(info(name, endpoint))
		stop = p.ServeOn(listener)
		t.Cleanup(stop)
		return p, stop
	}
	_, stop := serve("smb", "")
	f.expectStepping(t, "+ smb 1.0.0 smb-reg.sock")
	pipe, _ := serve("pipe", `\\.\pipe\csi`)
	for end := time.Now().Add(patience); len(pipe.Statuses) == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		f.clock.Step(time.Second)
	}
	if s := status(t, pipe); s.PluginRegistered || !strings.Contains(s.Error, `CSIPlugin pipe: its endpoint is the named pipe \\.\pipe\csi; want a Unix socket`) {
		t.Errorf("the plugin was told %v", s)
	}
	stop()
	f.expectStepping(t, "- smb 1.0.0 smb-reg.sock")
	if len(pipe.Asked) != 1 {
		t.Errorf("it was asked %d times, want once", len(pipe.Asked))
	}
}

// TestSocketsInManyDirectories: each directory is watched as soon as it is there, and what is in it goes with it.
func TestSocketsInManyDirectories(t *testing.T) {
	f := start(t, false, nil)
	want := map[string]bool{}
	for _, name := range []string{"a", "b", "c", "d"} {
		serve(t, pluginstest.New(info(name, "")), filepath.Join(f.dir, name, "deep", name+".sock"))
		want["+ "+name+" 1.0.0 "+name+".sock"] = true
	}
	for range len(want) {
		select {
		case got := <-f.lines:
			if !want[got] {
				t.Errorf("got %q", got)
			}
			delete(want, got)
		case <-time.After(patience):
			t.Fatalf("missing: %v", want)
		}
	}
	if err := os.RemoveAll(filepath.Join(f.dir, "b")); err != nil {
		t.Fatal(err)
	}
	f.expect(t, "- b 1.0.0 b.sock")
}
