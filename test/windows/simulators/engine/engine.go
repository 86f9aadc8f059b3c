// Package engine is a Docker engine for Windows, for tests: a strict proxy in front of a Linux engine. It answers, refuses and words
// its errors like Docker on one build of Windows Server. It runs accepted containers as Linux containers.
//
//	docker client --npipe--> relay --> Engine: rules, C:\ -> directory --> dockerd of Linux, or dockertest
//
// What a container or network is to the client is kept in a label of the one beneath, so that it outlives Engine as it outlives dockerd.exe.
// Each rule names its source; docs/design/windows-quirks.md lists them. What the engine does not know fails and is kept in Faults.
package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/versions"
)

// Options select the Windows build and the Linux engine.
type Options struct {
	Build     int                 // Windows Server's: 14393, 17763, 20348 or 26100
	Drive     string              // the local directory that serves as drive C
	Isolation container.Isolation // the daemon's default (exec-opt isolation); empty means process, as on every Server
	// Dial connects to the Linux engine.
	Dial func(context.Context) (net.Conn, error)
	// HNS receives networks and containers' endpoints once Watch runs. With nil the engine works without HNS.
	HNS HNSCall
	// CredentialSpec reports whether the host's registry has a credential spec of that name, ignoring case. Nil means that it has none.
	CredentialSpec func(name string) bool
}

// Engine is an http.Handler. It is safe for concurrent use.
type Engine struct {
	opts  Options
	facts release
	proxy *httputil.ReverseProxy
	http  *http.Client

	endpoints sync.Mutex // held while HNS endpoints change
	joined    sync.Map   // IDs of containers that have their endpoints

	mu     sync.Mutex
	calls  []string
	faults []string
}

// New returns an Engine that has not connected yet. An error names the wrong option.
func New(opts Options) (*Engine, error) {
	facts, ok := releases[opts.Build]
	if !ok {
		return nil, fmt.Errorf("build %d: there is no such Windows Server", opts.Build)
	}
	if info, err := os.Stat(opts.Drive); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("drive C is %q: must be a directory (%v)", opts.Drive, err)
	}
	if opts.Isolation.IsDefault() {
		opts.Isolation = container.IsolationProcess
	}
	transport := &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return opts.Dial(ctx) },
		DisableKeepAlives: true, // the Linux engine may restart
	}
	e := &Engine{opts: opts, facts: facts, http: &http.Client{Transport: transport}}
	e.proxy = &httputil.ReverseProxy{
		Transport:      transport,
		FlushInterval:  -1,
		Rewrite:        func(r *httputil.ProxyRequest) { r.Out.URL.Scheme, r.Out.URL.Host = "http", "engine" },
		ModifyResponse: e.modify,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			refuse(w, http.StatusInternalServerError, "the engine beneath does not answer: "+err.Error())
		},
	}
	return e, nil
}

// Calls returns the requests so far with their status: "POST /containers/create 201".
func (e *Engine) Calls() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.calls...)
}

// Faults returns what a Windows client should never send: calls and fields that do not exist, and fields that Windows silently ignores. A
// test fails if there are any.
func (e *Engine) Faults() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.faults...)
}

func (e *Engine) fault(format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.faults = append(e.faults, fmt.Sprintf(format, args...))
}

var versioned = regexp.MustCompile(`^/v(\d+\.\d+)(/.*)$`)

// ServeHTTP serves one request.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	where, version := r.URL.Path, ""
	if m := versioned.FindStringSubmatch(where); m != nil {
		version, where = m[1], m[2]
	}
	answer := &noted{ResponseWriter: w}
	e.identify(answer.Header())
	switch {
	case version != "" && versions.LessThan(version, e.facts.minAPI):
		refuse(answer, http.StatusBadRequest, fmt.Sprintf("client version %s is too old. Minimum supported API version is %s, please upgrade your client to a newer version", version, e.facts.minAPI))
	case version != "" && versions.GreaterThan(version, e.facts.api):
		refuse(answer, http.StatusBadRequest, fmt.Sprintf("client version %s is too new. Maximum supported API version is %s", version, e.facts.api))
	default:
		e.route(answer, r, where)
	}
	e.mu.Lock()
	e.calls = append(e.calls, fmt.Sprintf("%s %s %d", r.Method, where, answer.status))
	e.mu.Unlock()
}

func (e *Engine) identify(h http.Header) {
	h.Set("Api-Version", e.facts.api)
	h.Set("Ostype", "windows")
	h.Set("Server", "Docker/"+e.facts.docker+" (windows)")
}

// passed matches the calls that are forwarded unchanged; modify translates their answers.
var passed = regexp.MustCompile(`^(GET|HEAD|POST|DELETE) /(_ping|version|info|events|images(/.*)?|networks(/prune)?|volumes(/.*)?|containers/json|` +
	`containers/[^/]+(/(json|logs|start|stop|kill|restart|wait|resize|attach|rename|unpause|changes|stats))?|exec/[^/]+/(json|start|resize)|auth|build|commit)$`)

// route dispatches a call to its handler.
func (e *Engine) route(w http.ResponseWriter, r *http.Request, where string) {
	parts := strings.Split(strings.Trim(where, "/"), "/")
	key := r.Method + " /" + parts[0]
	for i, part := range parts[1:] {
		if i != 0 || part == "create" || part == "json" {
			key += "/" + part
		} else {
			key += "/*"
		}
	}
	handler := map[string]func(http.ResponseWriter, *http.Request, string){
		"POST /containers/create": e.create, "POST /containers/*/update": e.update, "POST /containers/*/pause": e.pause,
		"POST /containers/*/start": e.start, "POST /containers/*/exec": e.exec, "GET /containers/*/top": e.top,
		"GET /containers/*/archive": e.archive, "HEAD /containers/*/archive": e.archive, "PUT /containers/*/archive": e.archive,
		"GET /networks/*": e.network, "DELETE /networks/*": e.network, "POST /networks/create": e.createNetwork,
		"POST /networks/*/connect": e.connect, "POST /networks/*/disconnect": e.connect,
	}[key]
	id := ""
	if len(parts) > 1 {
		id = parts[1]
	}
	switch {
	case handler != nil:
		handler(w, r, id)
	case passed.MatchString(r.Method + " " + where):
		e.forward(w, r)
	default:
		e.fault("%s %s: no such call", r.Method, where)
		refuse(w, http.StatusNotFound, "page not found")
	}
}

// beneath is the newest API version of the Linux engine in Debian.
const beneath = "1.41"

// forward forwards the request with the Linux engine's API version.
func (e *Engine) forward(w http.ResponseWriter, r *http.Request) {
	if m := versioned.FindStringSubmatch(r.URL.Path); m != nil && versions.GreaterThan(m[1], beneath) {
		r.URL.Path = "/v" + beneath + m[2]
		r.URL.RawPath = ""
	}
	e.proxy.ServeHTTP(w, r)
}

// ask gets path from the Linux engine and decodes the answer into out.
func (e *Engine) ask(ctx context.Context, path string, out any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine"+path, nil)
	if err != nil {
		return err
	}
	response, err := e.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, response.Status)
	}
	return json.NewDecoder(response.Body).Decode(out)
}

// do sends the simulator's own request to the Linux engine; a non-nil body is sent as JSON.
func (e *Engine) do(ctx context.Context, method, path string, body any) (status int, text []byte, err error) {
	data := []byte{}
	if body != nil {
		if data, err = json.Marshal(body); err != nil {
			return 0, nil, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://engine"+path, bytes.NewReader(data))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := e.http.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	text, err = io.ReadAll(response.Body)
	return response.StatusCode, text, err
}

// relay writes what do returned.
func relay(w http.ResponseWriter, status int, text []byte, err error) {
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text)
}

// Path returns the local path of a file on drive C. Like Windows, it ignores the case of names.
func (e *Engine) Path(windows string) string {
	path := e.opts.Drive
	for _, name := range strings.FieldsFunc(windows[2:], func(r rune) bool { return r == '\\' || r == '/' }) {
		path = child(path, name)
	}
	return path
}

func child(dir, name string) string {
	exact := filepath.Join(dir, name)
	if _, err := os.Lstat(exact); err == nil {
		return exact
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return exact
	}
	for _, entry := range entries {
		if strings.EqualFold(entry.Name(), name) {
			return filepath.Join(dir, entry.Name())
		}
	}
	return exact
}

// noted records the status of an answer. Hijack and Flush reach the connection through Unwrap.
type noted struct {
	http.ResponseWriter
	status int
}

func (n *noted) WriteHeader(status int) {
	if n.status == 0 || n.status < 200 {
		n.status = status
	}
	n.ResponseWriter.WriteHeader(status)
}

func (n *noted) Write(data []byte) (int, error) {
	if n.status == 0 {
		n.status = http.StatusOK
	}
	return n.ResponseWriter.Write(data)
}

// Unwrap implements the interface that http.ResponseController needs.
func (n *noted) Unwrap() http.ResponseWriter { return n.ResponseWriter }

func refuse(w http.ResponseWriter, status int, message string) {
	answer(w, status, map[string]string{"message": message})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
