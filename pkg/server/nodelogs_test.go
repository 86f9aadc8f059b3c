package server

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	programs "github.com/winkube/winkube/pkg/command"
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
	fake := programs.NewFake()
	fake.Script("journalctl --field _SYSTEMD_UNIT", programs.Answer{Stdout: "ssh.service\nkubelet.service\n"})
	fake.Script("journalctl --utc --no-pager --output=short-precise --lines=100000 --unit=kubelet", programs.Answer{Stdout: "of the journal\n"})
	fake.Script("journalctl --utc --no-pager --output=short-precise --lines=100000 --unit=kubelet --grep=none", programs.Answer{Err: programs.Exit(1, "")})
	windows := programs.NewFake()
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
				t.Errorf("%q was taken for the name of a service", service)
			}
		}
		oldestFirst([]byte(text), q.pattern)
	})
}
