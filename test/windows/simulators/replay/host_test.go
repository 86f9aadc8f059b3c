package replay

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/record"
	"github.com/winkube/winkube/test/output"
	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/simulators/engine"
	"github.com/winkube/winkube/test/windows/simulators/sim"
)

var update = flag.Bool("update", false, "record the simulators again, and write down how other recordings differ")

const (
	recordings = "testdata/*.jsonl"
	image      = "mcr.microsoft.com/windows/nanoserver:test"
)

// TestRecordings reads all recordings. Each request, repeated in order, gets its recorded answer; recordings contain no secrets.
func TestRecordings(t *testing.T) {
	files, err := filepath.Glob(recordings)
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	for _, file := range files {
		rec := read(t, file)
		if (rec.Header.OS == "windows") != (rec.Header.Build > 0) || rec.Header.Engine == "" || rec.Header.API == "" {
			t.Errorf("%s: the header says %+v", file, rec.Header)
		}
		h := New(rec)
		for _, e := range h.rec.Exchanges {
			if !replayed(e) {
				continue
			}
			e.In = slices.Clone(e.In)
			for i := range e.In { // like a shim: with the handle that it got
				for number, name := range h.handles {
					if record.TextOf(e.In[i]) == name {
						e.In[i] = record.Text(number)
					}
				}
			}
			if got, ok := h.Answer(e.Service, e.Call, e.In); !ok || got.Code != e.Code && changes(e) {
				t.Errorf("%s: exchange %d (%s %s) is answered %#x, %v", file, e.N, e.Service, e.Call, got.Code, ok)
			}
		}
		if d, m := h.Deviations(), h.Missing(); len(d)+len(m) > 0 {
			t.Errorf("%s: %q %q", file, d, m)
		}
		for _, e := range rec.Exchanges {
			for _, word := range []string{`"Env":["`, "BEGIN ", "eyJ", "password"} {
				if strings.Contains(short(e.In)+short(e.Out), word) {
					t.Errorf("%s: exchange %d has %q", file, e.N, word)
				}
			}
		}
	}
}

func replayed(e record.Exchange) bool {
	return e.Service == record.HNS || e.Service == record.Engine || e.Service == record.Netsh
}

func read(t *testing.T, file string) record.Recording {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	rec, err := record.Read(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return rec
}

// kubelet returns kubelet.exe with coverage counters.
func kubelet(t *testing.T) string {
	t.Helper()
	return rig.Counted(t, "./cmd/kubelet", "kubelet.exe")
}

// TestSimulated records the simulators of each build and replays the recording: the program removes what it created, and its requests are the same.
// With -update two of the recordings are written to testdata for TestRecordings, labelled as simulated.
func TestSimulated(t *testing.T) {
	if os.Getenv("WINKUBE_WINE") == "" {
		t.Skip("needs Wine: run make test-windows, or set WINKUBE_WINE=1")
	}
	exe := kubelet(t)
	for _, build := range rig.Wanted(rig.Builds...) {
		t.Run(fmt.Sprint(build), func(t *testing.T) {
			p := rig.Test(t, build)
			w := world(t, p)
			e := simulatedEngine(t, p, w)
			before := w.HNS.String()
			rec := recordHost(t, p, exe, e)
			if got := w.HNS.String(); got != before {
				t.Errorf("left in HNS:\n%s\nbefore:\n%s", got, before)
			}
			noForwarding(t, p, w, rec)
			if len(rec.Header.Failed) > 0 || !rec.Header.Simulated || rec.Header.Build != build {
				t.Errorf("header: %+v", rec.Header)
			}
			for _, service := range []string{record.HNS, record.IPHelper, record.Netsh, record.Registry, record.Engine} {
				if !has(rec, service) {
					t.Errorf("nothing of %s was recorded", service)
				}
			}
			file := filepath.Join(t.TempDir(), "recording.jsonl")
			if err := rec.Save(file); err != nil {
				t.Fatal(err)
			}
			if kept := fmt.Sprintf("testdata/simulated-%d.jsonl", build); *update && (build == 14393 || build == 20348) {
				_ = os.Remove(kept)
				if err := rec.Save(kept); err != nil {
					t.Fatal(err)
				}
				_ = os.Chmod(kept, 0o644)
			}
			replayHost(t, w, p, exe, file)
		})
	}
}

func has(rec record.Recording, service string) bool {
	for _, e := range rec.Exchanges {
		if e.Service == service {
			return true
		}
	}
	return false
}

// world installs a World into a prefix.
func world(t *testing.T, p *rig.Prefix) *sim.World {
	t.Helper()
	w := sim.New(p.Build, rig.HostAdapter(t))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.Compute = func(string) (string, bool) { return `{"Statistics":{"Processor":{"TotalRuntime100ns":1}}}`, true }
	w.Serve(l)
	t.Cleanup(w.Close)
	if err := w.Install(t.Context(), p, l.Addr()); err != nil {
		t.Fatal(err)
	}
	return w
}

// simulatedEngine returns Docker of that Windows, on the World's HNS, with one image.
func simulatedEngine(t *testing.T, p *rig.Prefix, w *sim.World) http.Handler {
	t.Helper()
	release := map[int]string{14393: "10.0.14393.0", 17763: "10.0.17763.0", 20348: "10.0.20348.0", 26100: "10.0.26100.0"}[p.Build]
	fake := dockertest.New(dockertest.Options{})
	fake.AddImage(dockertest.Image{Names: []string{image}, Entrypoint: []string{"ping"}, Size: 1000, OS: "windows", OSVersion: release})
	linux := httptest.NewServer(fake)
	t.Cleanup(func() { linux.CloseClientConnections(); linux.Close() })
	e, err := engine.New(engine.Options{Build: p.Build, Drive: p.Path(`C:\`), HNS: func(method, path, request string) (string, error) {
		result, value, _ := w.HNS.Call("HNSCall", []string{method, path, request})
		if result != 0 {
			return "", fmt.Errorf("%#x", uint32(result))
		}
		return value, nil
	}, Dial: func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", linux.Listener.Addr().String())
	}})
	if err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() { _ = e.Watch(ctx, func() { close(ready) }) }()
	<-ready
	return e
}

// recorded is the file that programs write.
const recorded = `C:\recording.jsonl`

// recordWords returns the arguments of a recording with that engine.
func recordWords(t *testing.T, engine string) []string {
	t.Helper()
	ip, _ := rig.HostAddress(t)
	return []string{"doctor", "--record=" + recorded, "--record-image=" + image, "--node-ip=" + ip, "--docker-endpoint=" + strings.Replace(engine, "http:", "tcp:", 1)}
}

// recordHost runs the program and returns its recording.
func recordHost(t *testing.T, p *rig.Prefix, exe string, engine http.Handler) record.Recording {
	t.Helper()
	server := httptest.NewServer(engine)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	_ = os.Remove(p.Path(recorded))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	out, err := p.Run(ctx, exe, recordWords(t, server.URL)...)
	t.Log(out)
	if err != nil {
		t.Errorf("%v", err)
	}
	return read(t, p.Path(recorded))
}

// replayHost replays a recording and reports the program's deviations. A file NAME.deviations beside the recording lists the known ones.
func replayHost(t *testing.T, w *sim.World, p *rig.Prefix, exe, file string) {
	t.Helper()
	h := New(read(t, file))
	var one sync.Mutex
	seen := map[string][]netip.Prefix{}
	adapt := func() {
		one.Lock()
		defer one.Unlock()
		want := h.Adapters()
		for name := range seen {
			if _, there := want[name]; !there {
				w.IPHelper.SetAdapter(name, false, nil)
			}
		}
		for name, addresses := range want {
			w.IPHelper.SetAdapter(name, true, addresses)
		}
		seen = want
	}
	w.Replay = func(service, function string, args [][]byte) (uint32, [][]byte, bool) {
		result, fields, ok := h.Shim(service, function, args)
		adapt()
		return result, fields, ok
	}
	adapt()
	recordHost(t, p, exe, h)
	var got strings.Builder
	for _, d := range append(h.Deviations(), h.Missing()...) {
		fmt.Fprintln(&got, d)
	}
	known := strings.TrimSuffix(file, ".jsonl") + ".deviations"
	if *update && !h.Header().Simulated {
		_ = os.Remove(known)
		if got.Len() > 0 {
			if err := os.WriteFile(known, []byte(got.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	want, err := os.ReadFile(known)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("%s deviates:\n%s\nknown is:\n%s", file, got.String(), want)
	}
}

// TestVolunteers replays the recordings made on Windows.
func TestVolunteers(t *testing.T) {
	files, err := filepath.Glob(recordings)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		rec := read(t, file)
		if rec.Header.Simulated || rec.Header.OS != "windows" {
			continue
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			p := rig.Test(t, rec.Header.Build)
			replayHost(t, world(t, p), p, kubelet(t), file)
		})
	}
}

// linuxHost sets up a host with an address, a default route and the bridge that an engine would create.
const linuxHost = `ip link set lo up && ip link add d0 type veth peer name d1 && ip link set d1 up && ip addr add 10.9.9.2/24 dev d0 && ip link set d0 up &&
ip route add default via 10.9.9.1 && ip link add winkube0 type bridge && exec "$0" "$@"`

// TestLinuxEngines replays the recordings of Linux engines: the kubelet's program, in a network namespace, makes the same
// requests.
func TestLinuxEngines(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root for a network namespace")
	}
	for _, program := range []string{"unshare", "ip", "iptables"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs %s: %v", program, err)
		}
	}
	files, err := filepath.Glob("testdata/linux-*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recordings: %v", err)
	}
	exe := filepath.Join(t.TempDir(), "kubelet")
	if said, err := output.Of(exec.CommandContext(t.Context(), "go", "build", "-o", exe, "../../../../cmd/kubelet")); err != nil {
		t.Fatalf("cannot build the kubelet: %v: %s", err, said)
	}
	for _, file := range files {
		h := New(read(t, file))
		socket := filepath.Join(t.TempDir(), "engine.sock")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
		server.Start()
		t.Cleanup(server.Close)
		again := filepath.Join(t.TempDir(), "again.jsonl")
		said, err := output.Of(exec.CommandContext(t.Context(), "unshare", "-n", "sh", "-c", linuxHost, exe, "doctor", "--record="+again, "--node-ip=10.9.9.2", "--docker-endpoint=unix://"+socket))
		if err != nil {
			t.Errorf("%s: %v: %s", file, err, said)
		}
		if d := append(h.Deviations(), h.Missing()...); len(d) > 0 {
			t.Errorf("%s: %s", file, strings.Join(d, "\n"))
		}
		if got, want := len(read(t, again).Exchanges), len(h.rec.Exchanges); got < want-5 || got > want+5 { // without pings and reads that depend on timing
			t.Errorf("%s: %d exchanges, recorded are %d", file, got, want)
		}
	}
}
