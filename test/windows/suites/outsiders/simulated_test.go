package outsiders

import (
	"context"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/test/windows/simulators/calls"
	"github.com/winkube/winkube/test/windows/simulators/engine"
	"github.com/winkube/winkube/test/windows/simulators/hns"
)

// differences are the lines in which dockerd.exe 28.5.2 on Server 2025 and its simulation differ, and why each difference stays.
var differences = []struct{ lines, why string }{
	{`^version `, "the rig's registry has another BuildLabEx"},
	{`^info DockerRootDir `, "the test gives dockerd.exe a directory"},
	{`^create network on no adapter`, "Wine has no words for results of HNS"},
	{`^  (nat|none): driver|^    subnet 172\.`, "the range of the network nat is that of Linux' bridge beneath; the fake engine beneath says less of none"},
	{`^  HNS endpoint `, "Linux beneath chooses the address, on Windows HNS; the simulated engine passes no DNS servers on to endpoints"},
	{`^  HCS `, "the simulated engine's containers are Linux'"},
	{`^  "NetworkMode":"container:nowhere"|^    start 500 joining network namespace|^    start (404|500) network nowhere`, "answers of the engine beneath"},
	{`credential ?spec .*(nowhere|container)|^    start 500 failed handling spec`, "the words are those of 20.10, and the system's"},
	{`^    start 500 (failed to create endpoint .*: )?Windows does not support`, "libnetwork says in which network"},
	{`^  "Memory":5: `, "Linux beneath has a least memory"},
	{`^  state exited, `, "a container that is stopped ends with Linux' code"},
}

// TestSimulatedEngine sends the simulated engine the same requests as dockerd-28.exe. Except for the listed differences,
// the answers must be equal.
func TestSimulatedEngine(t *testing.T) {
	const build = 26100
	real, err := os.ReadFile("testdata/dockerd-28.golden")
	if err != nil {
		t.Fatal(err)
	}
	log := &calls.Log{}
	h := hns.New(hns.Options{Build: build, Log: log, Adapters: []string{"Ethernet", "Ethernet 2"}})
	beneath := dockertest.New(dockertest.Options{CPUs: 2})
	beneath.AddImage(dockertest.Image{Names: []string{image}, Cmd: []string{"cmd"}})
	linux := httptest.NewServer(beneath)
	t.Cleanup(linux.Close)
	drive := t.TempDir()
	for _, dir := range []string{"data", "logs"} {
		if err := os.Mkdir(filepath.Join(drive, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(drive, "data/hosts"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	options := engine.Options{Build: build, Drive: drive,
		Dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", linux.Listener.Addr().String())
		},
		HNS: func(method, path, request string) (string, error) {
			result, value, record := h.Call("HNSCall", []string{method, path, request})
			if result != 0 {
				return "", fmt.Errorf("%s (%#x)", record, uint32(result))
			}
			return value, nil
		},
	}
	r := &report{t: t, build: build, hns: h, log: log}
	var stop func()
	start := func() {
		e, err := engine.New(options)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ready, done := make(chan struct{}), make(chan error, 1)
		go func() { done <- e.Watch(ctx, func() { close(ready) }) }()
		select {
		case <-ready:
		case err := <-done:
			t.Fatal(err)
		}
		server := httptest.NewServer(e)
		r.url = server.URL
		stop = func() {
			server.CloseClientConnections()
			server.Close()
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
	start()
	r.play(func() { stop(); start() })
	stop()
	explained := make([]bool, len(differences))
	for _, line := range different(strings.Split(string(real), "\n"), strings.Split(r.b.String(), "\n")) {
		known := false
		for i, d := range differences {
			if regexp.MustCompile(d.lines).MatchString(line[2:]) {
				explained[i], known = true, true
			}
		}
		if !known {
			t.Errorf("%s", line)
		}
	}
	for i, d := range differences {
		if !explained[i] {
			t.Errorf("there is no difference %s any more: remove its row", d.lines)
		}
	}
}

// different returns the lines only in a, marked "- ", and those only in b, marked "+ ", by the longest common subsequence.
func different(a, b []string) (out []string) {
	length := make([][]int, len(a)+1)
	for i := range length {
		length[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			length[i][j] = max(length[i+1][j], length[i][j+1])
			if a[i] == b[j] {
				length[i][j] = length[i+1][j+1] + 1
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && length[i+1][j] >= length[i][j+1]:
			out = append(out, "- "+a[i])
			i++
		default:
			out = append(out, "+ "+b[j])
			j++
		}
	}
	return out
}
