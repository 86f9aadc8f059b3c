package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/lab"
)

// engine is the real engine behind the proxy: it supports 1.12 to 1.41, records the last request and returns the given
// answers.
type engine struct {
	answers map[string]string // by METHOD and path with version
	headers map[string]string

	got  *http.Request
	body string
}

func (e *engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/version" {
		fmt.Fprint(w, `{"ApiVersion":"1.41","MinAPIVersion":"1.12"}`)
		return
	}
	body, _ := io.ReadAll(r.Body)
	e.got, e.body = r, string(body)
	for name, value := range e.headers {
		w.Header().Set(name, value)
	}
	answer, ok := e.answers[r.Method+" "+r.URL.Path]
	if !ok {
		w.WriteHeader(http.StatusTeapot)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprint(w, answer)
}

// behind starts the proxy with a face in front of a handler, and returns a client for it and its socket.
func behind(t *testing.T, api string, handler http.Handler) (*http.Client, string) {
	t.Helper()
	dir := t.TempDir()
	serve := func(name string, handler http.Handler) string {
		socket := filepath.Join(dir, name)
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler}}
		server.Start()
		t.Cleanup(server.Close)
		return socket
	}
	socket := serve("proxy", newProxy(faces[api], serve("engine", handler)))
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}, socket
}

func do(t *testing.T, client *http.Client, call, body string) (*http.Response, string) {
	t.Helper()
	method, path, _ := strings.Cut(call, " ")
	request, err := http.NewRequest(method, "http://docker"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, strings.TrimSpace(string(data))
}

// Each row is one request through one face: what the real engine gets, or how the proxy rejects it.
func TestRequests(t *testing.T) {
	const refused = ""
	for _, test := range []struct {
		api, call, body string
		got             string // what the real engine gets; rejected: nothing
		gotBody         string
		status          int
		message         string
	}{
		{"1.24", "GET /v1.25/info", "", refused, "", 400, "client version 1.25 is too new. Maximum supported API version is 1.24"},
		{"1.41", "GET /v1.42/info", "", refused, "", 400, "client version 1.42 is too new. Maximum supported API version is 1.41"},
		{"min1.44", "GET /v1.43/info", "", refused, "", 400, "client version 1.43 is too old. Minimum supported API version is 1.44, please upgrade your client to a newer version"},
		{"min1.44", "GET /v1.51/info", "", "GET /v1.41/info", "", 0, ""},
		{"1.24", "GET /info", "", "GET /v1.24/info", "", 0, ""},
		{"1.24", "HEAD /_ping", "", refused, "", 404, ""},
		{"1.24", "POST /v1.24/containers/prune", "", refused, "", 404, "page not found"},
		{"1.41", "POST /v1.41/containers/prune", "", "POST /v1.41/containers/prune", "", 0, ""},
		{"1.24", "POST /v1.24/containers/create?name=a&platform=linux", `{"Image":"i","StopTimeout":3,"HostConfig":{"Binds":["/a:/b"],"Init":true,"Mounts":[{"Target":"/x"}]}}`,
			"POST /v1.24/containers/create?name=a", `{"HostConfig":{"Binds":["/a:/b"]},"Image":"i"}`, 0, ""},
		{"1.41", "POST /v1.41/containers/create", `{"HostConfig":{"Annotations":{"a":"b"},"Mounts":[{"BindOptions":{"NonRecursive":true,"CreateMountpoint":true},"Target":"/x"}]}}`,
			"POST /v1.41/containers/create", `{"HostConfig":{"Mounts":[{"BindOptions":{"NonRecursive":true},"Target":"/x"}]}}`, 0, ""},
		{"1.24", "POST /v1.24/containers/create", `{"HostConfig":{"CapAdd":["ALL","CAP_CHOWN"]}}`, refused, "", 500, `Unknown capability to add: "CAP_CHOWN"`},
		{"1.24", "POST /v1.24/containers/create", `{"HostConfig":{"IpcMode":"shareable"}}`, refused, "", 400, "invalid IPC mode: shareable"},
		{"1.24", "POST /v1.24/containers/1/exec", `{"Cmd":["a"],"Env":["B=C"]}`, "POST /v1.24/containers/1/exec", `{"Cmd":["a"]}`, 0, ""},
		{"1.24", "GET /v1.24/containers/1/stats?one-shot=1&stream=0", "", "GET /v1.24/containers/1/stats?stream=0", "", 0, ""},
		{"min1.44", "POST /v1.44/containers/create", `{"HostConfig":{"ConsoleSize":[0,0],"Mounts":[{"BindOptions":{"ReadOnlyNonRecursive":true}}]}}`,
			"POST /v1.41/containers/create", `{"HostConfig":{"Mounts":[{"BindOptions":{}}]}}`, 0, ""},
		{"min1.44", "POST /v1.44/containers/create", `{"HostConfig":{"Mounts":[{"BindOptions":{"ReadOnlyForceRecursive":true}}]}}`, refused, "", 501,
			"engineproxy: HostConfig.Mounts[].BindOptions.ReadOnlyForceRecursive is of API 1.44, the engine behind speaks 1.41: its effect cannot be shown"},
		{"min1.44", "POST /v1.44/networks/create", `{"Name":"n"}`, "POST /v1.41/networks/create", `{"CheckDuplicate":true,"Name":"n"}`, 0, ""},
		{"min1.44", "GET /v1.44/images/json?filter=x", "", "GET /v1.41/images/json", "", 0, ""},
	} {
		t.Run(test.api+" "+test.call, func(t *testing.T) {
			e := &engine{}
			client, _ := behind(t, test.api, e)
			response, body := do(t, client, test.call, test.body)
			if test.got == refused {
				var answer struct{ Message string }
				_ = json.Unmarshal([]byte(body), &answer)
				if e.got != nil || response.StatusCode != test.status || answer.Message != test.message {
					t.Fatalf("got %d %q, engine asked: %v; want %d %q", response.StatusCode, answer.Message, e.got != nil, test.status, test.message)
				}
				return
			}
			if e.got == nil {
				t.Fatalf("the engine was not asked: %d %s", response.StatusCode, body)
			}
			if got := e.got.Method + " " + e.got.URL.String(); got != test.got || e.body != test.gotBody {
				t.Fatalf("the engine got\n%s %s, want\n%s %s", got, e.body, test.got, test.gotBody)
			}
		})
	}
}

func TestAnswers(t *testing.T) {
	for _, test := range []struct{ api, call, behind, answer, want string }{
		{"1.24", "GET /v1.24/version", "1.24", `{"ApiVersion":"1.41","MinAPIVersion":"1.12","Version":"20.10.24","Components":[]}`, `{"ApiVersion":"1.24","Version":"1.12.6"}`},
		{"min1.44", "GET /v1.51/version", "1.41", `{"ApiVersion":"1.41","MinAPIVersion":"1.12","Version":"20.10.24"}`, `{"ApiVersion":"1.52","MinAPIVersion":"1.44","Version":"29.0.0"}`},
		{"1.24", "GET /v1.24/info", "1.24", `{"CgroupVersion":"2","Isolation":"","MemTotal":25216139264}`, `{"MemTotal":25216139264,"ServerVersion":"1.12.6"}`},
		{"1.24", "GET /v1.24/exec/1/json", "1.24", `{"ExitCode":1,"Pid":7}`, `{"ExitCode":1}`},
		{"1.41", "GET /v1.41/exec/1/json", "1.41", `{"ExitCode":1,"Pid":7}`, `{"ExitCode":1,"Pid":7}`},
		{"min1.44", "GET /v1.51/images/a/b:c/json", "1.41", `{"Config":{"Hostname":"","User":"u"},"Container":"x","Id":"i","VirtualSize":1}`, `{"Config":{"User":"u"},"Id":"i"}`},
		{"min1.44", "GET /v1.51/images/json", "1.41", `[{"Id":"i","RepoDigests":["<none>@<none>"],"RepoTags":["<none>:<none>"],"VirtualSize":1}]`, `[{"Id":"i","RepoDigests":[],"RepoTags":[]}]`},
		{"min1.44", "GET /v1.51/containers/1/json", "1.41", `{"NetworkSettings":{"IPAddress":"1.2.3.4","Networks":{"n":{"IPAddress":"1.2.3.4"}}}}`, `{"NetworkSettings":{"Networks":{"n":{"IPAddress":"1.2.3.4"}}}}`},
		{"1.24", "GET /v1.24/containers/json", "1.24", `[{"State":"removing"},{"State":"running"}]`, `[{"State":"exited"},{"State":"running"}]`},
		{"min1.44", "GET /v1.51/events", "1.41", `{"Action":"die","id":"1","status":"die"}{"Action":"start"}`, "{\"Action\":\"die\"}\n{\"Action\":\"start\"}"},
	} {
		t.Run(test.api+" "+test.call, func(t *testing.T) {
			_, path, _ := strings.Cut(test.call, " ")
			_, where, _ := strings.Cut(path[1:], "/")
			e := &engine{answers: map[string]string{"GET /v" + test.behind + "/" + where: test.answer}}
			client, _ := behind(t, test.api, e)
			if response, got := do(t, client, test.call, ""); got != test.want || response.StatusCode != http.StatusOK {
				t.Fatalf("got %d %s, want %s", response.StatusCode, got, test.want)
			}
		})
	}
}

func TestHeaders(t *testing.T) {
	said := map[string]string{"Api-Version": "1.41", "Ostype": "linux", "Docker-Experimental": "false", "Server": "Docker/20.10.24 (linux)"}
	for api, want := range map[string]map[string]string{
		"1.24":    {"Api-Version": "", "Ostype": "", "Docker-Experimental": "", "Server": "Docker/1.12.6 (linux)"},
		"1.41":    {"Api-Version": "1.41", "Ostype": "linux", "Docker-Experimental": "false", "Server": "Docker/20.10.24 (linux)"},
		"min1.44": {"Api-Version": "1.52", "Ostype": "linux", "Docker-Experimental": "false", "Server": "Docker/29.0.0 (linux)"},
	} {
		client, _ := behind(t, api, &engine{headers: said})
		response, _ := do(t, client, "GET /_ping", "")
		for name, value := range want {
			if got := response.Header.Get(name); got != value {
				t.Errorf("%s: %s: got %q, want %q", api, name, got, value)
			}
		}
	}
}

// A hijacked connection has two directions, and the end of one does not end the other: exec needs that for its standard
// input.
func TestHijack(t *testing.T) {
	_, socket := behind(t, "1.24", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" {
			fmt.Fprint(w, `{"ApiVersion":"1.41","MinAPIVersion":"1.12"}`)
			return
		}
		_, _ = io.ReadAll(r.Body)
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
		in, _ := io.ReadAll(rw) // until the client closes its direction
		fmt.Fprintf(conn, "got %q", in)
	}))
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST /v1.24/exec/1/start HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n{\"Tty\":false}")
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(response, err)
	}
	fmt.Fprint(conn, "hello")
	if err := conn.(*net.UnixConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(reader); err != nil || string(out) != `got "hello"` {
		t.Fatalf("%q %v", out, err)
	}
}

// Events reach the client immediately.
func TestStream(t *testing.T) {
	next := make(chan string)
	client, _ := behind(t, "min1.44", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" {
			fmt.Fprint(w, `{"ApiVersion":"1.41","MinAPIVersion":"1.12"}`)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.(http.Flusher).Flush()
		for text := range next {
			fmt.Fprint(w, text)
			w.(http.Flusher).Flush()
		}
	}))
	response, err := client.Get("http://docker/v1.51/events")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	reader := bufio.NewReader(response.Body)
	for _, action := range []string{"create", "start"} {
		next <- `{"Action":"` + action + `","status":"x"}`
		if line, err := reader.ReadString('\n'); err != nil || line != `{"Action":"`+action+"\"}\n" {
			t.Fatalf("%q %v", line, err)
		}
	}
	close(next)
	if _, err := reader.ReadByte(); err != io.EOF {
		t.Fatalf("after the stream's end: %v", err)
	}
}

// An engine that is down breaks the connection, as without the proxy.
func TestNoEngine(t *testing.T) {
	dir := t.TempDir()
	server := httptest.NewServer(newProxy(faces["1.41"], filepath.Join(dir, "nothing")))
	defer server.Close()
	if response, err := http.Get(server.URL + "/info"); err == nil {
		t.Fatalf("got %s", response.Status)
	}
}

func TestFaces(t *testing.T) {
	if got := strings.Join(lab.EngineAPIs, ", "); got != known() {
		t.Errorf("the lab offers %s, the proxy knows %s", got, known())
	}
}

// A row without effect could hide a missing one.
func TestTables(t *testing.T) {
	for _, c := range append(append(append([]change{}, calls...), queries...), append(requests, answers...)...) {
		if c.from == 0 && c.till == 0 || c.till != 0 && c.till <= c.from || !strings.Contains(c.call, " /") {
			t.Errorf("%+v: wants a call and a version", c)
		}
	}
}
