package docker

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/docker/dockertest"
)

// TestRotationReal follows a container of a real engine that writes through rotations, as fast as it can. All its output is kept, so that a reader
// loses nothing even on a slow machine.
func TestRotationReal(t *testing.T) {
	const lines = 200_000
	r := realRig(t, func(c *Config) { c.LogMaxSize, c.LogMaxFiles = 300_000, 100 })
	p := r.pod("rotation", []string{"count", strconv.Itoa(lines)})
	id := r.run(p)[0]
	var out bytes.Buffer
	if err := r.Logs(t.Context(), id, &v1.PodLogOptions{Follow: true}, &out, &out); err != nil {
		t.Fatal(err)
	}
	checkCount(t, out.String(), 0, lines)

	in, err := r.Inspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	files, ok := r.Locate(in)
	size, count := files.Size()
	t.Logf("%d files with %d bytes are left; ours: %v", count, size, ok)
	if !ok || count < 30 {
		t.Errorf("this test wants its files read, and many rotations")
	}
	out.Reset()
	if err := r.Logs(t.Context(), id, &v1.PodLogOptions{TailLines: new(int64(30_000))}, &out, &out); err != nil {
		t.Fatal(err)
	}
	checkCount(t, out.String(), lines-30_000, lines)
	out.Reset()
	r.abandonFollowers(t)
}

// checkCount checks that text is the output of count from line first to line last-1.
func checkCount(t *testing.T, text string, first, last int) {
	t.Helper()
	bad := 0
	for line := range strings.Lines(text) {
		number, rest, long := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if n, err := strconv.Atoi(number); err != nil || n != first || long != (n%1000 == 999) || long && len(rest) != 40_000 {
			if bad++; bad < 10 {
				t.Errorf("want line %d, have %.400q", first, line)
			}
			first = n
		}
		first++
	}
	if first != last {
		t.Errorf("the last line is %d, want %d", first-1, last-1)
	}
}

// abandonFollowers disconnects clients that follow a silent log, and checks that no goroutine of them is left.
func (r *rig) abandonFollowers(t *testing.T) {
	id := r.run(r.pod("silent", []string{"pause", "ready"}))[0]
	follow := func(count int) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, count)
		for range count {
			out := dockertest.NewBuffer()
			go func() { done <- r.Logs(ctx, id, &v1.PodLogOptions{Follow: true}, out, out) }()
			out.Await(t, "ready")
		}
		cancel()
		for range count {
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("abandoned: %v", err)
			}
		}
	}
	follow(1)
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	follow(30)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) { // their goroutines end after them
		if runtime.NumGoroutine() <= goroutines+2 && openFiles(t) <= files+2 {
			return
		}
	}
	t.Errorf("goroutines %d, were %d; open files %d, were %d", runtime.NumGoroutine(), goroutines, openFiles(t), files)
}
