package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	programs "github.com/winkube/winkube/pkg/command/commandtest"
)

func TestParseLogQuery(t *testing.T) {
	for _, test := range []struct{ query, system, want string }{
		{"query=kubelet&sinceTime=2026-01-02T03:04:05%2B01:00&untilTime=2026-01-02T04:00:00Z&tailLines=5&boot=-1&pattern=pod.*x", "linux",
			"--utc --no-pager --output=short-precise --since=2026-01-02 02:04:05 UTC --until=2026-01-02 04:00:00 UTC --lines=5 --unit=kubelet --grep=pod.*x --boot=-1"},
		{"query=kubelet&query=docker", "linux", "--utc --no-pager --output=short-precise --lines=100000 --unit=kubelet --unit=docker"},
		{"query=docker&query=kubelet&sinceTime=2026-01-02T03:04:05Z&tailLines=9", "windows",
			"qe Application /q:*[System[Provider[@Name='docker' or @Name='kubelet'] and TimeCreated[@SystemTime>='2026-01-02T03:04:05.000Z']]] /c:9 /rd:true /f:text"},
		{"query=%20", "linux", "query: \" \": want the name of a service"},
		{"query=--output=cat", "linux", "query: \"--output=cat\": want the name of a service"},
		{"query=a'%20or%20'", "windows", "query: \"a' or '\": want the name of a service"},
		{"tailLines=1", "linux", "query: 0 services: want 1 to 4, or one file"},
		{"query=a&query=b&query=c&query=d&query=e", "linux", "query: 5 services: want 1 to 4"},
		{"query=/a&query=b", "linux", "query: \"/a\": want one file and nothing else"},
		{"query=/a&tailLines=3", "linux", "query: a file is given as a whole"},
		{"query=a&tailLines=100001", "linux", "tailLines: \"100001\": want a number from 0 to 100000"},
		{"query=a&boot=1", "linux", "boot: \"1\": want 0 for this boot"},
		{"query=a&boot=0", "windows", "boot: \"0\": want 0 for this boot, -1 for the one before and so on; not on Windows"},
		{"query=a&sinceTime=yesterday", "linux", "sinceTime: \"yesterday\": want a time such as"},
		{"query=a&sinceTime=2026-01-02T03:04:05Z&untilTime=2026-01-01T03:04:05Z", "linux", "untilTime: 2026-01-01T03:04:05Z: want a time after sinceTime"},
		{"query=a&pattern=(", "linux", "pattern: error parsing regexp"},
	} {
		values, err := url.ParseQuery(test.query)
		if err != nil {
			t.Fatal(err)
		}
		q, err := parseLogQuery(values, test.system)
		got := strings.Join(journalArgs(q, q.services), " ")
		if test.system == "windows" {
			got = strings.Join(eventArgs(q, q.services), " ")
		}
		if err != nil {
			got = err.Error()
		}
		if got != test.want && (err == nil || !strings.HasPrefix(got, test.want)) {
			t.Errorf("%s: got  %s\nwant %s", test.query, got, test.want)
		}
	}
}

func TestNodeLogs(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"syslog": "a line\n", "docker/docker.log": "of docker\n", "outside": "secret"} {
		path := filepath.Join(dir, "log", name)
		if name == "outside" {
			path = filepath.Join(dir, name)
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../outside", filepath.Join(dir, "log", "link")); err != nil {
		t.Logf("without a link: %v", err)
	}
	fake := programs.New()
	fake.Script("journalctl --field _SYSTEMD_UNIT", programs.Answer{Stdout: "ssh.service\nkubelet.service\n"})
	fake.Script("journalctl --utc --no-pager --output=short-precise --lines=100000 --unit=kubelet", programs.Answer{Stdout: "of the journal\n"})
	fake.Script("journalctl --utc --no-pager --output=short-precise --lines=100000 --unit=kubelet --grep=none", programs.Answer{Err: programs.Exit(1, "")})
	windows := programs.New()
	windows.Script("wevtutil gp kubelet", programs.Answer{})
	windows.Script("wevtutil gp docker", programs.Answer{Err: programs.Exit(2, "not found")})
	windows.Script("wevtutil qe Application /q:*[System[Provider[@Name='kubelet']]] /c:2 /rd:true /f:text",
		programs.Answer{Stdout: "Event[0]:\n  Source: kubelet\nnewer\n\nEvent[1]:\n  Source: kubelet\nolder\n"})
	for _, test := range []struct {
		name  string
		logs  NodeLogs
		path  string
		code  int
		wants string
	}{
		{"a file", NodeLogs{}, "/logs/syslog", 200, "a line\n"},
		{"a directory", NodeLogs{}, "/logs/", 200, `<a href="docker/">`},
		{"nothing", NodeLogs{}, "/logs/x", 404, ""},
		{"the way out", NodeLogs{}, "/logs/..%2foutside", 404, ""},
		{"a link out", NodeLogs{}, "/logs/link", 404, ""},
		{"query that is off", NodeLogs{}, "/logs/?query=kubelet", 403, "enableSystemLogQuery: true"},
		{"of the journal", NodeLogs{Query: true}, "/logs/?query=kubelet", 200, "of the journal\n"},
		{"a pattern that nothing matches", NodeLogs{Query: true}, "/logs/?query=kubelet&pattern=none", 200, ""},
		{"of a file by its service", NodeLogs{Query: true}, "/logs/?query=docker", 200, "of docker\n"},
		{"with what files cannot do", NodeLogs{Query: true}, "/logs/?query=docker&tailLines=1", 200, "try without specifying options"},
		{"unknown", NodeLogs{Query: true}, "/logs/?query=cups", 200, "log not found for cups"},
		{"a file by query", NodeLogs{Query: true}, "/logs/?query=/syslog", 200, "a line\n"},
		{"the way out by query", NodeLogs{Query: true}, "/logs/?query=/../outside", 200, "error getting log"},
		{"wrong", NodeLogs{Query: true}, "/logs/?query=", 400, "query: \"\": want the name"},
		{"events", NodeLogs{Query: true, OS: "windows", Runner: windows}, "/logs/?query=kubelet&tailLines=2", 200,
			"Event[1]:\n  Source: kubelet\nolder\nEvent[0]:\n  Source: kubelet\nnewer\n"},
		{"events by pattern", NodeLogs{Query: true, OS: "windows", Runner: windows}, "/logs/?query=kubelet&tailLines=2&pattern=ol.er", 200, "Event[1]:\n  Source: kubelet\nolder\n"},
		{"a file on Windows", NodeLogs{Query: true, OS: "windows", Runner: windows}, "/logs/?query=docker", 200, "of docker\n"},
	} {
		test.logs.Dir = filepath.Join(dir, "log")
		if test.logs.Runner == nil {
			test.logs.OS, test.logs.Runner = "linux", fake
		}
		w := httptest.NewRecorder()
		test.logs.ServeHTTP(w, httptest.NewRequest(http.MethodGet, test.path, nil))
		if w.Code != test.code || !strings.Contains(w.Body.String(), test.wants) || strings.Contains(w.Body.String(), "secret") {
			t.Errorf("%s: %d %q, want %d %q", test.name, w.Code, w.Body, test.code, test.wants)
		}
	}
}

func FuzzNodeLogQuery(f *testing.F) {
	f.Add("query=kubelet&tailLines=5&pattern=x", "Event[0]:\nx\nEvent[1]:\ny")
	f.Fuzz(func(t *testing.T, query, text string) {
		values, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		q, err := parseLogQuery(values, "linux")
		if err != nil {
			return
		}
		for _, service := range q.services {
			if strings.HasPrefix(service, "-") || strings.ContainsAny(service, " '\"[]") {
				t.Errorf("%q was accepted as the name of a service", service)
			}
		}
		oldestFirst([]byte(text), q.pattern)
	})
}

// TestLogFiles: the type and length of served files, and the size limit of directory listings.
func TestLogFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("page.html", "<script>alert(1)</script>")
	write("old.gz", "packed")
	odd, link := "a&b<c>", `<a href="a&amp;b%3Cc%3E">a&amp;b&lt;c&gt;</a>`
	if runtime.GOOS == "windows" { // names cannot have brackets there
		odd, link = "a&b", `<a href="a&amp;b">a&amp;b</a>`
	}
	write(odd, "odd")
	if err := os.MkdirAll(filepath.Join(dir, "sub", "many"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range maxListed + 1 {
		write(fmt.Sprintf("sub/many/%d", i), "")
	}
	get := func(logs NodeLogs, path string, header http.Header) *httptest.ResponseRecorder {
		logs.Dir = dir
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, path, nil)
		maps.Copy(r.Header, header)
		logs.ServeHTTP(w, r)
		return w
	}
	if w := get(NodeLogs{}, "/logs/page.html", nil); w.Header().Get("Content-Type") != "text/plain; charset=utf-8" || w.Header().Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("a page of a pod is served as %q", w.Header())
	}
	if w := get(NodeLogs{}, "/logs/old.gz", nil); w.Header().Get("Content-Type") != "application/octet-stream" || w.Body.String() != "packed" {
		t.Errorf("a packed file: %q %q", w.Header(), w.Body)
	}
	if w := get(NodeLogs{}, "/logs/page.html", http.Header{"Range": {"bytes=1-6"}}); w.Code != http.StatusPartialContent || w.Body.String() != "script" {
		t.Errorf("a part: %d %q", w.Code, w.Body)
	}
	if w := get(NodeLogs{}, "/logs/", nil); !strings.Contains(w.Body.String(), link) || strings.Contains(w.Body.String(), "and more") {
		t.Errorf("the directory: %s", w.Body)
	}
	for path, want := range map[string]string{"/logs/sub": "sub/", "/logs/sub/many": "many/", "/logs/old.gz/": "../old.gz"} {
		if w := get(NodeLogs{}, path, nil); w.Code != http.StatusMovedPermanently || w.Header().Get("Location") != want {
			t.Errorf("%s leads to %d %q, want %q", path, w.Code, w.Header().Get("Location"), want)
		}
	}
	if w := get(NodeLogs{}, "/logs/sub/many/", nil); strings.Count(w.Body.String(), "<a ") != maxListed || !strings.Contains(w.Body.String(), "and more: these are the first 10000") {
		t.Errorf("%d names of a directory of %d", strings.Count(w.Body.String(), "<a "), maxListed+1)
	}
	if w := get(NodeLogs{fileTimeout: time.Nanosecond}, "/logs/page.html", nil); w.Body.Len() > 0 {
		t.Errorf("after its time: %q", w.Body)
	}
}

// growing appends to a file whenever some of it is written to the client, like a log that grows faster than it is read.
type growing struct {
	*httptest.ResponseRecorder
	file  *os.File
	times int
}

func (g *growing) Write(p []byte) (int, error) {
	if g.times++; g.times > 1000 {
		return 0, errors.New("there is no end of it")
	}
	if _, err := g.file.Write(p); err != nil {
		return 0, err
	}
	return g.ResponseRecorder.Write(p)
}

// TestEndlessLog: a growing file is served up to its initial end, requested by path, query or service.
func TestEndlessLog(t *testing.T) {
	dir, text := t.TempDir(), strings.Repeat("line\n", 100)
	fake := programs.New()
	fake.Script("journalctl --field _SYSTEMD_UNIT", programs.Answer{})
	for _, path := range []string{"/logs/endless", "/logs/?query=/endless", "/logs/?query=endless"} {
		file, err := os.OpenFile(filepath.Join(dir, "endless"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteString(text); err != nil {
			t.Fatal(err)
		}
		w := &growing{ResponseRecorder: httptest.NewRecorder(), file: file}
		NodeLogs{Dir: dir, Query: true, OS: "linux", Runner: fake}.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		file.Close()
		if w.Body.String() != text {
			t.Errorf("%s: %d bytes after %d writes, want %d", path, w.Body.Len(), w.times, len(text))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	NodeLogs{Dir: dir}.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/logs/endless", nil))
	if w.Body.Len() > 0 {
		t.Errorf("a client that is gone got %d bytes", w.Body.Len())
	}
}
