package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// proxy forwards requests to an engine and responds as a face's engine would. It is safe for concurrent use.
type proxy struct {
	face   face
	engine *http.Client
	pass   *httputil.ReverseProxy

	mu     sync.Mutex
	newest version // of the real engine; 0: not requested yet
	oldest version
}

// newProxy returns a proxy for the engine at socket.
func newProxy(f face, socket string) *proxy {
	transport := &http.Transport{
		DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}
	p := &proxy{face: f, engine: &http.Client{Transport: transport}}
	p.pass = &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "engine"
			r.Out.Host = r.In.Host
		},
		FlushInterval:  -1, // flush immediately, for events and logs
		ModifyResponse: p.shape,
		ErrorLog:       log.New(os.Stderr, "", log.LstdFlags),
		// If the engine is down, break the connection instead of responding.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	return p
}

// spoken describes a request; it is in the request's context.
type spoken struct {
	call    string
	version version // requested API version
}

type spokenKey struct{}

var versioned = regexp.MustCompile(`^/v([0-9.]+)(/.*)$`)

// ServeHTTP handles one request.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	asked, where := p.face.max, r.URL.Path
	if m := versioned.FindStringSubmatch(where); m != nil {
		where = m[2]
		v, ok := parseVersion(m[1])
		switch {
		case !ok:
			p.refuse(w, http.StatusBadRequest, "%s is no API version", m[1])
			return
		case v < p.face.min:
			p.refuse(w, http.StatusBadRequest, "client version %s is too old. Minimum supported API version is %s, please upgrade your client to a newer version", v, p.face.min)
			return
		case v > p.face.max:
			p.refuse(w, http.StatusBadRequest, "client version %s is too new. Maximum supported API version is %s", v, p.face.max)
			return
		}
		asked = v
	}
	s := spoken{call: r.Method + " " + strings.TrimSuffix(where, "/"), version: asked}
	if slices.ContainsFunc(calls, func(c change) bool { return !c.in(asked) && matches(c.call, s.call) }) {
		p.refuse(w, http.StatusNotFound, "page not found")
		return
	}
	oldest, newest, err := p.behind(r.Context())
	if err != nil {
		panic(http.ErrAbortHandler) // like an engine that is down
	}
	status, err := p.shapeRequest(r, s, newest)
	if err != nil {
		p.refuse(w, status, "%v", err)
		return
	}
	r.URL.Path = fmt.Sprintf("/v%s%s", min(max(asked, oldest), newest), where)
	r.URL.RawPath = ""
	p.pass.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), spokenKey{}, s)))
}

// refuse responds with an error in the engine's format.
func (p *proxy) refuse(w http.ResponseWriter, status int, format string, args ...any) {
	p.setHeaders(w.Header())
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"message": fmt.Sprintf(format, args...)})
}

// behind asks the real engine, once, for its API versions. Engines before 1.25 do not report the oldest.
func (p *proxy) behind(ctx context.Context) (oldest, newest version, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.newest != 0 {
		return p.oldest, p.newest, nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/version", nil)
	if err != nil {
		return 0, 0, err
	}
	response, err := p.engine.Do(request)
	if err != nil {
		return 0, 0, err
	}
	defer response.Body.Close()
	var answer struct{ ApiVersion, MinAPIVersion string }
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return 0, 0, err
	}
	newest, ok := parseVersion(answer.ApiVersion)
	if !ok {
		return 0, 0, fmt.Errorf("the engine's API version %q cannot be understood", answer.ApiVersion)
	}
	oldest, _ = parseVersion(answer.MinAPIVersion)
	p.oldest, p.newest = oldest, newest
	return oldest, newest, nil
}

// shapeRequest removes from a request what the version does not support, because an engine ignores that. It rejects
// what the version supports but the real engine does not.
func (p *proxy) shapeRequest(r *http.Request, s spoken, newest version) (status int, err error) {
	query := r.URL.Query()
	for _, c := range queries {
		if !c.in(s.version) && matches(c.call, s.call) {
			query.Del(c.what)
		}
	}
	r.URL.RawQuery = query.Encode()
	if r.Header.Get("Content-Type") != "application/json" || r.ContentLength == 0 {
		return 0, nil
	}
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return http.StatusBadRequest, err
	}
	doc, err := decode(data)
	if errors.Is(err, io.EOF) {
		r.Body, r.ContentLength = http.NoBody, 0
		return 0, nil
	}
	if err != nil {
		return http.StatusBadRequest, err
	}
	if status, err := refusal(s, doc); err != nil {
		return status, err
	}
	for _, c := range requests {
		if !matches(c.call, s.call) || c.in(s.version) && newest >= c.from {
			continue
		}
		if held := remove(doc, c.what); held && c.in(s.version) && !slices.Contains(harmless, c.what) {
			return http.StatusNotImplemented, fmt.Errorf("engineproxy: %s is of API %s, the engine behind speaks %s: its effect cannot be shown", c.what, c.from, newest)
		}
	}
	if object, ok := doc.(map[string]any); ok && s.call == "POST /networks/create" && s.version >= 44 {
		object["CheckDuplicate"] = true // names are always unique from 1.44
	}
	if data, err = json.Marshal(doc); err != nil {
		return http.StatusInternalServerError, err
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	r.Header.Set("Content-Length", strconv.Itoa(len(data)))
	return 0, nil
}

// refusal returns the error of that version's engine for values, not fields, that it does not support. Neither change
// is in the history: 19.03 and later accept CAP_NAME; earlier engines compared names literally.
func refusal(s spoken, doc any) (status int, err error) {
	object, _ := doc.(map[string]any)
	config, _ := object["HostConfig"].(map[string]any)
	if s.call != create || config == nil {
		return 0, nil
	}
	if s.version < 40 {
		for _, field := range []string{"CapAdd", "CapDrop"} {
			for _, name := range list(config[field]) {
				if text, _ := name.(string); strings.HasPrefix(text, "CAP_") {
					//lint:ignore ST1005 the engine's words
					return http.StatusInternalServerError, fmt.Errorf("Unknown capability to %s: %q", strings.ToLower(strings.TrimPrefix(field, "Cap")), text)
				}
			}
		}
	}
	if mode, _ := config["IpcMode"].(string); s.version < 32 && slices.Contains([]string{"private", "shareable", "none"}, mode) {
		return http.StatusBadRequest, fmt.Errorf("invalid IPC mode: %s", mode)
	}
	return 0, nil
}

// shape makes a response look like the face's.
func (p *proxy) shape(response *http.Response) error {
	s, ok := response.Request.Context().Value(spokenKey{}).(spoken)
	if !ok {
		return errors.New("a request without its call")
	}
	p.setHeaders(response.Header)
	if response.StatusCode != http.StatusOK || !strings.HasPrefix(response.Header.Get("Content-Type"), "application/json") {
		return nil
	}
	v := s.version
	if p.face.strict {
		v = p.face.max
	}
	streams := s.call == "GET /events" || matches("GET /containers/*/stats", s.call)
	if !streams && !slices.ContainsFunc(answers, func(c change) bool { return matches(c.call, s.call) }) && s.call != "GET /containers/json" {
		return nil
	}
	if streams {
		reader, writer := io.Pipe()
		from := response.Body
		go func() { writer.CloseWithError(shapeStream(writer, from, s.call, v)) }()
		response.Body = &stream{reader, from}
		response.ContentLength = -1
		response.Header.Del("Content-Length")
		return nil
	}
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	doc, err := decode(data)
	if err != nil {
		return err
	}
	shapeAnswer(s.call, v, doc)
	p.name(s.call, doc)
	if data, err = json.Marshal(doc); err != nil {
		return err
	}
	response.Body, response.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	response.Header.Set("Content-Length", strconv.Itoa(len(data)))
	return nil
}

// stream is the shaped part of an endless body.
type stream struct {
	*io.PipeReader
	from io.Closer
}

func (s *stream) Close() error { return errors.Join(s.PipeReader.Close(), s.from.Close()) }

// name replaces the real engine's versions with the face's.
func (p *proxy) name(call string, doc any) {
	object, ok := doc.(map[string]any)
	if !ok {
		return
	}
	switch call {
	case "GET /version":
		object["Version"], object["ApiVersion"] = p.face.release, p.face.max.String()
		if _, ok := object["MinAPIVersion"]; ok {
			object["MinAPIVersion"] = p.face.min.String()
		}
		delete(object, "Components") // repeats the real engine's versions
	case "GET /info":
		object["ServerVersion"] = p.face.release
	}
}

func (p *proxy) setHeaders(h http.Header) {
	h.Set("Api-Version", p.face.max.String())
	system := h.Get("Ostype")
	if system == "" {
		system = "linux"
	}
	h.Set("Server", fmt.Sprintf("Docker/%s (%s)", p.face.release, system))
	for _, c := range headers {
		if !c.in(p.face.max) {
			h.Del(c.what)
		}
	}
}
