package logs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/docker/engine"
)

// scribe writes a log like the engine's json-file driver: it cuts long lines, and rotates by closing, renaming, and opening.
type scribe struct {
	t     testing.TB
	files Files
	limit int // size limit of one file in bytes; 0: no rotation
	at    time.Time
	file  *os.File
	size  int
}

var (
	logEpoch  = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	scribeNow = logEpoch.Add(10 * time.Second)
)

func newScribe(t testing.TB, limit, count int) *scribe {
	s := &scribe{t: t, files: Files{dir: t.TempDir(), base: "abc-json.log", count: count}, limit: limit, at: logEpoch}
	s.open()
	t.Cleanup(func() { s.file.Close() })
	return s
}

func (s *scribe) check(err error) {
	if err != nil {
		s.t.Error(err)
	}
}

func (s *scribe) path(i int) string { return filepath.Join(s.files.dir, s.files.name(i)) }

func (s *scribe) open() {
	var err error
	s.file, err = os.OpenFile(s.path(0), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	s.check(err)
	s.size = 0
}

func (s *scribe) rotate() {
	s.check(s.file.Close())
	for i := s.files.count - 1; i > 0; i-- {
		if err := os.Rename(s.path(i-1), s.path(i)); err != nil && !errors.Is(err, os.ErrNotExist) {
			s.t.Error(err)
		}
	}
	s.open()
}

// raw appends bytes as they are.
func (s *scribe) raw(text string) {
	_, err := s.file.WriteString(text)
	s.check(err)
	s.size += len(text)
}

// piece writes one entry, a second after the previous one.
func (s *scribe) piece(stream, text string) {
	s.at = s.at.Add(time.Second)
	line, err := json.Marshal(map[string]any{"log": text, "stream": stream, "time": s.at, "attrs": map[string]string{"tag": "x"}})
	s.check(err)
	if s.limit > 0 && s.size > s.limit {
		s.rotate()
	}
	s.raw(string(line) + "\n")
}

// write writes a line, with or without its newline, in pieces like the engine.
func (s *scribe) write(stream, text string) {
	const buffer = 16 << 10
	for len(text) > buffer {
		s.piece(stream, text[:buffer])
		text = text[buffer:]
	}
	s.piece(stream, text)
}

// readAll returns what a reader with these options gets from a log at rest.
func readAll(t testing.TB, files Files, options v1.PodLogOptions) string {
	t.Helper()
	var out bytes.Buffer
	tail := int64(-1)
	if options.TailLines != nil {
		tail = *options.TailLines
	}
	r, err := files.read(tail)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	if err := r.once(context.Background(), newLogWriter(&options, scribeNow, &out, &out)); err != nil && !errors.Is(err, errLimit) {
		t.Fatal(err)
	}
	return out.String()
}

func TestReadLog(t *testing.T) {
	s := newScribe(t, 300, 9)
	long := strings.Repeat("long ", 10_000)
	s.write("stdout", "one\n")
	s.write("stderr", "two\n")
	s.write("stdout", long+"\n")
	s.write("stdout", "\x00\xff binary \u2028\n")
	s.raw("{\"log\":\"cut short by a cra\n\x00\x00\x00\x00")
	s.write("stderr", "five\n")
	s.write("stdout", "\n")
	s.write("stdout", "no newline")
	if _, err := os.Stat(s.path(2)); err != nil {
		t.Fatalf("this test wants several files: %v", err)
	}
	binary := "\x00\ufffd binary \u2028\n" // bytes that JSON cannot represent are lost in the engine
	all := []string{"one\n", "two\n", long + "\n", binary, "five\n", "\n", "no newline"}
	n := func(n int64) *int64 { return &n }
	at := func(second int) *metav1.Time {
		return &metav1.Time{Time: logEpoch.Add(time.Duration(second) * time.Second)}
	}
	stream := func(s string) *string { return &s }
	stamp := func(second int) string {
		return logEpoch.Add(time.Duration(second)*time.Second).Format("2006-01-02T15:04:05.000000000Z") + " "
	}
	for _, test := range []struct {
		name    string
		options v1.PodLogOptions
		want    string
	}{
		{"all", v1.PodLogOptions{}, strings.Join(all, "")},
		{"last", v1.PodLogOptions{TailLines: n(1)}, all[6]},
		{"last three", v1.PodLogOptions{TailLines: n(3)}, strings.Join(all[4:], "")},
		{"last five, over files and a line in pieces", v1.PodLogOptions{TailLines: n(5)}, strings.Join(all[2:], "")},
		{"more than there is", v1.PodLogOptions{TailLines: n(99)}, strings.Join(all, "")},
		{"none", v1.PodLogOptions{TailLines: n(0)}, ""},
		{"stdout", v1.PodLogOptions{Stream: stream(v1.LogStreamStdout)}, all[0] + all[2] + binary + all[5] + all[6]},
		{"stderr", v1.PodLogOptions{Stream: stream(v1.LogStreamStderr)}, all[1] + all[4]},
		{"since a time", v1.PodLogOptions{SinceTime: at(8)}, strings.Join(all[4:], "")}, // the long line has seconds 3 to 6
		{"since the middle of a line", v1.PodLogOptions{SinceTime: at(4)}, strings.Join(all[3:], "")},
		{"seconds", v1.PodLogOptions{SinceSeconds: n(2)}, strings.Join(all[4:], "")},
		{"last since", v1.PodLogOptions{SinceTime: at(10), TailLines: n(4)}, "no newline"},
		{"bytes", v1.PodLogOptions{LimitBytes: n(10)}, "one\ntwo\nlo"},
		{"bytes with time", v1.PodLogOptions{LimitBytes: n(36), Timestamps: true}, stamp(1) + "one\n" + stamp(2)[:1]},
		{"last bytes", v1.PodLogOptions{LimitBytes: n(3), TailLines: n(1)}, "no "},
		{"with time", v1.PodLogOptions{Timestamps: true, TailLines: n(6)},
			stamp(2) + "two\n" + stamp(3) + long + "\n" + stamp(7) + binary + stamp(8) + "five\n" + stamp(9) + "\n" + stamp(10) + "no newline"},
	} {
		if got := readAll(t, s.files, test.options); got != test.want {
			t.Errorf("%s: got %s\nwant %s", test.name, abbreviate(got), abbreviate(test.want))
		}
	}
}

func abbreviate(text string) string {
	if len(text) > 400 {
		return fmt.Sprintf("%q ... %q (%d bytes)", text[:200], text[len(text)-200:], len(text))
	}
	return strconv.Quote(text)
}

// TestMixedStreams: a line in pieces stays one line when the other stream writes in between.
func TestMixedStreams(t *testing.T) {
	s := newScribe(t, 0, 2)
	s.piece("stdout", "first ")
	s.piece("stderr", "other\n")
	s.piece("stdout", "half\n")
	if got, want := readAll(t, s.files, v1.PodLogOptions{}), "other\nfirst half\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	huge := strings.Repeat("x", maxLine+maxLine/2)
	s = newScribe(t, 0, 2)
	s.write("stdout", huge+"\n")
	got := readAll(t, s.files, v1.PodLogOptions{Timestamps: true})
	if _, rest, _ := strings.Cut(got, " "); rest != huge+"\n" {
		t.Errorf("a line longer than what is kept: %s", abbreviate(rest))
	}
}

// followScribe returns what a reader gets that follows s while write writes.
func followScribe(t *testing.T, s *scribe, slow bool, write func(out *dockertest.Buffer)) string {
	out := dockertest.NewBuffer()
	r, err := s.files.read(-1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.close()
	changed, stop, err := watchDirectory(s.files.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	ended, done := make(chan struct{}), make(chan error, 1)
	w := newLogWriter(&v1.PodLogOptions{Follow: true}, scribeNow, out, out)
	if slow {
		w.out = slowWriter{out}
	}
	go func() { done <- r.follow(t.Context(), w, changed, ended) }()
	write(out)
	close(ended)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return out.String()
}

type slowWriter struct{ *dockertest.Buffer }

func (w slowWriter) Write(p []byte) (int, error) {
	time.Sleep(20 * time.Microsecond) // a client that is somewhat slower than the writer
	return w.Buffer.Write(p)
}

func TestFollowRotation(t *testing.T) {
	for _, slow := range []bool{false, true} {
		s := newScribe(t, 20_000, 200)
		const lines = 5000
		var want strings.Builder
		got := followScribe(t, s, slow, func(*dockertest.Buffer) {
			for i := range lines {
				line := fmt.Sprintf("line %d\n", i)
				if i%500 == 7 {
					line = fmt.Sprintf("line %d %s\n", i, strings.Repeat("y", 40_000))
				}
				want.WriteString(line)
				s.write("stdout", line)
			}
			s.write("stdout", "the end, without newline")
			want.WriteString("the end, without newline")
		})
		if got != want.String() {
			t.Errorf("slow %v: got %s\nwant %s", slow, abbreviate(got), abbreviate(want.String()))
		}
		if _, err := os.Stat(s.path(20)); err != nil {
			t.Errorf("this test wants many rotations: %v", err)
		}
	}
}

// TestReadDuringRotation reads a log that is rotated continuously.
func TestReadDuringRotation(t *testing.T) {
	s := newScribe(t, 20_000, 8)
	var readers sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				lines := strings.Split(strings.TrimSuffix(readAll(t, s.files, v1.PodLogOptions{}), "\n"), "\n")
				for i := 1; i < len(lines); i++ {
					a, _ := strconv.Atoi(lines[i-1])
					if b, _ := strconv.Atoi(lines[i]); b != a+1 {
						t.Errorf("%q after %q", lines[i], lines[i-1])
						return
					}
				}
			}
		})
	}
	for i := range 4000 {
		s.write("stdout", strconv.Itoa(i)+"\n")
		if i%20 == 0 {
			time.Sleep(time.Millisecond) // no engine rotates faster than this
		}
	}
	close(stop)
	readers.Wait()
}

func TestFollowOddities(t *testing.T) {
	s := newScribe(t, 0, 3)
	before := strings.Repeat("before", 100) + "\n"
	s.write("stdout", before)
	if got, want := followScribe(t, s, false, func(out *dockertest.Buffer) {
		out.Await(t, before)
		s.check(os.Truncate(s.path(0), 0))
		s.write("stdout", "a\n")
		s.raw(`{"log":"in two `)
		s.raw(`writes\n","stream":"stdout","time":"2026-01-02T03:04:05Z"}` + "\n")
	}), before+"a\nin two writes\n"; got != want {
		t.Errorf("truncated: got %s, want %s", abbreviate(got), abbreviate(want))
	}
	// More rotations than there are files: the remaining lines arrive in order.
	s = newScribe(t, 0, 3)
	s.write("stdout", "0\n")
	got := followScribe(t, s, false, func(*dockertest.Buffer) {
		for i := 1; i < 9; i++ {
			s.rotate()
			s.write("stdout", fmt.Sprintf("%d\n", i))
		}
	})
	lines := strings.Fields(got)
	if !slices.IsSorted(lines) || len(lines) < 3 || lines[len(lines)-1] != "8" {
		t.Errorf("fell behind: %q", got)
	}
	// The container is removed.
	s = newScribe(t, 0, 3)
	s.write("stdout", "last words\n")
	if got := followScribe(t, s, false, func(out *dockertest.Buffer) {
		out.Await(t, "last words")
		s.check(os.RemoveAll(s.files.dir))
	}); got != "last words\n" {
		t.Errorf("removed: %q", got)
	}
}

func TestLogFilesRefused(t *testing.T) {
	config := func(kind string, options map[string]string) container.InspectResponse {
		return container.InspectResponse{ContainerJSONBase: &container.ContainerJSONBase{
			LogPath: "/x/abc/abc-json.log", HostConfig: &container.HostConfig{LogConfig: container.LogConfig{Type: kind, Config: options}},
		}}
	}
	files, ok := testStore(t, "unix:///x", "linux").readable(config("json-file", map[string]string{"max-file": "5"}))
	if !ok || files != (Files{"/x/abc", "abc-json.log", 5}) {
		t.Errorf("%+v, %v", files, ok)
	}
	for name, test := range map[string]struct {
		host, os string
		in       container.InspectResponse
	}{
		"remote":     {"tcp://127.0.0.1:1", "linux", config("json-file", nil)},
		"windows":    {"unix:///x", "windows", config("json-file", nil)},
		"local":      {"unix:///x", "linux", config("local", nil)},
		"none":       {"unix:///x", "linux", config("none", nil)},
		"compressed": {"unix:///x", "linux", config("json-file", map[string]string{"compress": "true"})},
	} {
		if _, ok := testStore(t, test.host, test.os).readable(test.in); ok {
			t.Errorf("%s: read", name)
		}
	}
	// For a missing file, or a link to another, the engine must be asked.
	dir := t.TempDir()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(`{"log":"secret\n","stream":"stdout"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	f := Files{dir: dir, base: "abc-json.log", count: 2}
	if _, err := f.read(-1); !errors.Is(err, errNoLogFiles) {
		t.Errorf("nothing there: %v", err)
	}
	if err := os.Symlink(secret, filepath.Join(dir, f.base)); err != nil {
		t.Skip("no links here")
	}
	if _, err := f.read(-1); !errors.Is(err, errNoLogFiles) {
		t.Errorf("a link to elsewhere: %v", err)
	}
}

func testStore(t *testing.T, host, system string) *Store {
	e, err := engine.New(engine.Config{Host: host})
	if err != nil {
		t.Fatal(err)
	}
	return New(e, system, "")
}

// FuzzLog: for any content of two files reading does not fail, and the last n lines are the end of all lines.
func FuzzLog(f *testing.F) {
	line := func(text string) string {
		return fmt.Sprintf(`{"log":%q,"stream":"stdout","time":"2026-01-02T03:04:05.1Z"}`+"\n", text)
	}
	f.Add([]byte(line("a\n")+line("b\n")), []byte(line("c\n")), uint8(2))
	f.Add([]byte(line("a\n")+line("part")), []byte(line("of a line\n")+line("open")), uint8(1))
	f.Add([]byte("\x00\x00"+line("a\n")+"{broken\n"), []byte("\n\n"+line("c\n")[:20]), uint8(3))
	f.Add([]byte(nil), []byte(nil), uint8(0))
	f.Fuzz(func(t *testing.T, older, newer []byte, n uint8) {
		files := Files{dir: t.TempDir(), base: "log", count: 2}
		for name, data := range map[string][]byte{"log": newer, "log.1": older} {
			if err := os.WriteFile(filepath.Join(files.dir, name), data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		stdout := v1.LogStreamStdout
		all := readAll(t, files, v1.PodLogOptions{})
		tail := int64(n)
		if last := readAll(t, files, v1.PodLogOptions{TailLines: &tail}); !strings.Contains(string(older)+string(newer), "stderr") && !strings.HasSuffix(all, last) {
			t.Errorf("last %d lines %q of %q", n, last, all)
		}
		one := readAll(t, files, v1.PodLogOptions{Stream: &stdout, LimitBytes: &[]int64{5}[0]})
		if len(one) > 5 {
			t.Errorf("%q is longer than 5 bytes", one)
		}
	})
}

// TestTailRandom compares the last lines with the end of all lines, for logs with all kinds of rotations and line lengths.
func TestTailRandom(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 1))
		s := newScribe(t, 1+random.IntN(60_000), 2+random.IntN(40))
		for range 1 + random.IntN(120) {
			length := random.IntN(30)
			if random.IntN(8) == 0 {
				length = random.IntN(100_000)
			}
			s.write("stdout", strings.Repeat(string(rune('a'+random.IntN(26))), length)+"\n")
		}
		all := readAll(t, s.files, v1.PodLogOptions{})
		lines := strings.SplitAfter(strings.TrimSuffix(all, "\n"), "\n")
		for _, n := range []int{0, 1, 2, random.IntN(len(lines) + 2), len(lines), len(lines) + 1} {
			want := strings.Join(lines[max(0, len(lines)-n):], "")
			if n > 0 {
				want += "\n"
			}
			if got := readAll(t, s.files, v1.PodLogOptions{TailLines: new(int64(n))}); got != want {
				t.Fatalf("seed %d, last %d of %d lines: got %s\nwant %s", seed, n, len(lines), abbreviate(got), abbreviate(want))
			}
		}
	}
}
