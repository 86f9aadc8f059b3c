package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"unicode/utf8"
)

// transport is a RoundTripper that records its exchanges.
type transport struct {
	next http.RoundTripper
	r    *Recorder
}

// Transport records requests that pass through next. For bodies other than JSON (logs, archives, streams of a command) it records only the length. It
// does not record headers: they contain credentials.
func (r *Recorder) Transport(next http.RoundTripper) http.RoundTripper {
	if r == nil {
		return next
	}
	return &transport{next, r}
}

var versioned = regexp.MustCompile(`^/v\d+\.\d+/`)

// RoundTrip implements http.RoundTripper. The exchange is complete when the response body has been read or closed.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	in, request, err := bodyOf(request)
	if err != nil {
		return nil, err
	}
	target := versioned.ReplaceAllString(request.URL.Path, "/")
	if request.URL.RawQuery != "" {
		target += "?" + request.URL.RawQuery
	}
	var args []json.RawMessage
	if len(in) > 0 {
		args = append(args, content(in))
	}
	open := t.r.ask(Engine, request.Method+" "+target, args...)
	response, err := t.next.RoundTrip(request)
	if err != nil {
		open.answer(0, err)
		return nil, err
	}
	if response.StatusCode == http.StatusSwitchingProtocols {
		open.answer(uint32(response.StatusCode), nil) // the body is a connection
		return response, nil
	}
	response.Body = &tee{ReadCloser: response.Body, done: func(body []byte, err error) {
		if len(body) == 0 {
			open.answer(uint32(response.StatusCode), err)
			return
		}
		open.answer(uint32(response.StatusCode), err, content(body))
	}}
	return response, nil
}

// bodyOf reads a request's body, and returns a request with an equal body.
func bodyOf(request *http.Request) ([]byte, *http.Request, error) {
	if request.Body == nil || request.Body == http.NoBody {
		return nil, request, nil
	}
	body, err := io.ReadAll(request.Body)
	if err := errors.Join(err, request.Body.Close()); err != nil {
		return nil, nil, fmt.Errorf("cannot read the request that is to be recorded: %w", err)
	}
	copied := request.Clone(request.Context())
	copied.Body = io.NopCloser(bytes.NewReader(body))
	return body, copied, nil
}

// maxStream is the maximum length of a recorded body.
const maxStream = 16 << 20

// content represents a body: a JSON document, a list of the documents in a stream, or its length.
func content(body []byte) json.RawMessage {
	if text := strings.TrimSpace(string(body)); utf8.Valid(body) && text != "" && (text[0] == '{' || text[0] == '[') {
		if json.Valid([]byte(text)) {
			return json.RawMessage(text)
		}
		var list []json.RawMessage
		decoder := json.NewDecoder(strings.NewReader(text))
		for {
			var one json.RawMessage
			err := decoder.Decode(&one)
			if errors.Is(err, io.EOF) {
				return encode(map[string]any{"stream": list})
			}
			if err != nil {
				break
			}
			list = append(list, one)
		}
	}
	if s := string(body); s == "OK" {
		return encode(s)
	}
	return encode(fmt.Sprintf("[%d bytes]", len(body)))
}

// tee keeps a copy of a body until its end.
type tee struct {
	io.ReadCloser
	kept []byte
	done func([]byte, error) // nil: already called
}

// Read implements io.Reader.
func (t *tee) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	t.kept = append(t.kept, p[:min(n, max(0, maxStream-len(t.kept)))]...)
	if err != nil {
		t.finish(err)
	}
	return n, err
}

// Close implements io.Closer.
func (t *tee) Close() error {
	t.finish(nil)
	return t.ReadCloser.Close()
}

func (t *tee) finish(err error) {
	if t.done == nil {
		return
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	t.done(t.kept, err)
	t.done = nil
}
