package outsiders

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/docker/networks"
	"github.com/winkube/winkube/test/windows/simulators/calls"
	"github.com/winkube/winkube/test/windows/simulators/hcs"
	"github.com/winkube/winkube/test/windows/simulators/hns"
)

// report records one engine's requests and answers.
type report struct {
	t     *testing.T
	build int
	hns   *hns.HNS
	log   *calls.Log // HNS calls
	hcs   *hcs.HCS   // nil if the engine does not create containers through HCS documents
	url   string     // the engine's address, http://host:port

	b strings.Builder
}

func (r *report) say(format string, args ...any) { fmt.Fprintf(&r.b, format+"\n", args...) }

// ask sends a request and returns the status and the answer.
func (r *report) ask(method, path string, body any) (int, map[string]any) {
	r.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		r.t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, bytes.NewReader(data))
	if err != nil {
		r.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	var out map[string]any
	_ = json.Unmarshal(text, &out) // lists and empty bodies are not maps
	return response.StatusCode, out
}

// store returns the kubelet's own network code for this engine.
func (r *report) store() *networks.Store {
	r.t.Helper()
	client, err := engine.New(engine.Config{Host: "tcp" + strings.TrimPrefix(r.url, "http"), OS: "windows"})
	if err != nil {
		r.t.Fatal(err)
	}
	return networks.New(client, "win1", "windows")
}

// message returns an answer's message without parts that vary between runs.
func message(answer map[string]any) string {
	text, _ := answer["message"].(string)
	return blank(text)
}

var changing = regexp.MustCompile(`[0-9a-f]{64}|"[0-9a-f]{12}"|Volume\{[0-9a-f-]+\}|tcp://127\.0\.0\.1:[0-9]+`)

func blank(text string) string {
	return changing.ReplaceAllStringFunc(text, func(found string) string {
		if found == strings.Repeat("2", 64) {
			return "BASE"
		}
		if found[0] == '"' {
			return `"ID"`
		}
		return "ID"
	})
}

func line(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return blank(string(text))
}

// since records the documents that HCS got after the first n.
func (r *report) since(n int) {
	r.t.Helper()
	if r.hcs == nil {
		return
	}
	for _, document := range r.hcs.Documents()[n:] {
		var fields map[string]any
		if err := json.Unmarshal([]byte(document.JSON), &fields); err != nil {
			r.t.Error(err)
		}
		for _, key := range slices.Sorted(mapKeys(fields)) {
			if list, ok := fields[key].([]any); ok { // the order of mounts is undefined
				slices.SortFunc(list, func(a, b any) int { return strings.Compare(line(a), line(b)) })
			}
			r.say("  HCS %s %s", key, line(fields[key]))
		}
	}
}

// endpoints returns the documents of endpoints requested through HNS v1.
func (r *report) endpoints() (documents []string) {
	for _, call := range r.log.Calls("HNSCall") {
		if len(call.Args) == 3 && call.Args[0] == "POST" && call.Args[1] == "/endpoints/" {
			documents = append(documents, call.Args[2])
		}
	}
	return documents
}

func (r *report) documents() int {
	if r.hcs == nil {
		return 0
	}
	return len(r.hcs.Documents())
}

func mapKeys(m map[string]any) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for key := range m {
			if !yield(key) {
				return
			}
		}
	}
}
