package replay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/windows/simulators/hns"
)

// Document is an HNS document from a public issue.
type Document struct {
	Source string // its URL
	Kind   string // v1/network, v1/endpoint, v1/policylist, v1/namespace
	HNS    string // HNS version; empty means unknown
	Build  int    // the Windows build; 0 means unknown
	Whole  bool   // false if the source has only a part
	About  string

	Document json.RawMessage
}

// corpus reads all documents, by file name.
func corpus(t *testing.T) map[string]Document {
	t.Helper()
	files, err := filepath.Glob("testdata/corpus/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("there is no corpus: %v", err)
	}
	out := map[string]Document{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d Document
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		out[strings.TrimSuffix(filepath.Base(file), ".json")] = d
	}
	return out
}

var publicSource = regexp.MustCompile(`^https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+$`)

// TestCorpus: each document has its source and the HNS version that its header names.
func TestCorpus(t *testing.T) {
	for name, d := range corpus(t) {
		var document struct {
			ID      string
			Version uint64
		}
		if err := json.Unmarshal(d.Document, &document); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !publicSource.MatchString(d.Source) || !slices.Contains([]string{"v1/network", "v1/endpoint", "v1/policylist", "v1/namespace"}, d.Kind) {
			t.Errorf("%s: source %q, kind %q", name, d.Source, d.Kind)
		}
		if got := fmt.Sprintf("%d.%d", document.Version>>32, document.Version&0xffffffff); document.Version != 0 && got != d.HNS {
			t.Errorf("%s: the document says HNS %s, its header %q", name, got, d.HNS)
		}
	}
}

// TestSimulatorAgainstCorpus compares the documents of the HNS simulator with public ones of the same kind and build: their fields, and the case of
// IDs. testdata/corpus.differences lists the differences; remove a line when the simulator implements it. Fields that the simulator does not need
// stay listed.
func TestSimulatorAgainstCorpus(t *testing.T) {
	var got strings.Builder
	documents := corpus(t)
	for _, name := range slices.Sorted(maps.Keys(documents)) {
		d := documents[name]
		build := buildOf(d)
		simulated, ok := simulate(t, build)[d.Kind]
		if !ok {
			continue
		}
		fmt.Fprintf(&got, "== %s (%s, HNS %s; simulated: build %d)\n", name, d.Source, d.HNS, build)
		for _, line := range unlike("", d.Document, simulated, d.Whole) {
			fmt.Fprintln(&got, line)
		}
	}
	const path = "testdata/corpus.differences"
	if *update {
		if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("the simulator's documents differ from public ones otherwise than %s says (-update writes it):\n%s", path, got.String())
	}
}

// buildOf returns the nearest simulated build.
func buildOf(d Document) int {
	switch {
	case strings.HasPrefix(d.HNS, "1."):
		return 14393
	case strings.HasPrefix(d.HNS, "9."), strings.HasPrefix(d.HNS, "10."), d.Build == 17763, d.Build == 19042:
		return 17763
	}
	return 20348
}

// simulate creates one object of each kind and reads it through HNS v1.
func simulate(t *testing.T, build int) map[string]json.RawMessage {
	t.Helper()
	h := hns.New(hns.Options{Build: build})
	call := func(method, path, request string) json.RawMessage {
		t.Helper()
		result, value, record := h.Call("HNSCall", []string{method, path, request})
		var answer struct {
			Success bool
			Output  json.RawMessage
		}
		if err := json.Unmarshal([]byte(value), &answer); result != 0 || err != nil || !answer.Success {
			t.Fatalf("%s %s: %#x %s %s %v", method, path, uint32(result), value, record, err)
		}
		return answer.Output
	}
	first := func(path string) json.RawMessage {
		var list []json.RawMessage
		if err := json.Unmarshal(call("GET", path, ""), &list); err != nil || len(list) == 0 {
			t.Fatalf("%s: %d objects, %v", path, len(list), err)
		}
		return list[0]
	}
	idOf := func(document json.RawMessage) string {
		var d struct{ ID string }
		if err := json.Unmarshal(document, &d); err != nil || d.ID == "" {
			t.Fatalf("no ID: %s, %v", document, err)
		}
		return d.ID
	}
	network := idOf(call("POST", "/networks/", `{"Name":"nat","Type":"nat","Subnets":[{"AddressPrefix":"172.20.0.0/16","GatewayAddress":"172.20.0.1"}]}`))
	endpoint := idOf(call("POST", "/endpoints/", fmt.Sprintf(`{"Name":"Ethernet","VirtualNetwork":%q}`, network)))
	out := map[string]json.RawMessage{"v1/network": first("/networks/"), "v1/endpoint": first("/endpoints/")}
	if h.V2() {
		call("POST", "/policylists/", fmt.Sprintf(`{"References":["/endpoints/%s"],"Policies":[{"Type":"ELB","VIPs":["10.96.0.1"],"Protocol":6,"InternalPort":80,"ExternalPort":80}]}`, endpoint))
		out["v1/policylist"] = first("/policylists/")
	}
	return out
}

var guidOf = regexp.MustCompile(`^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$`)

// unlike returns how a simulated document differs from a real one: fields missing in either (in the real one only if it is whole), types of values,
// and the case of IDs.
func unlike(where string, actual, simulated json.RawMessage, whole bool) (out []string) {
	var a, b map[string]json.RawMessage
	if json.Unmarshal(actual, &a) != nil || json.Unmarshal(simulated, &b) != nil {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(a)) {
		value, there := b[key]
		switch {
		case !there && where == "":
			out = append(out, fmt.Sprintf("real HNS has %s: %s", key, brief(a[key])))
		case !there:
		case kindOf(a[key]) != kindOf(value):
			out = append(out, fmt.Sprintf("%s is %s, simulated %s", where+key, kindOf(a[key]), kindOf(value)))
		default:
			out = append(out, unlike(where+key+".", a[key], value, whole)...)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(b)) {
		if _, there := a[key]; !there && whole && where == "" {
			out = append(out, fmt.Sprintf("simulated HNS has %s: %s", key, brief(b[key])))
		}
	}
	return out
}

// brief returns the beginning of a value.
func brief(raw json.RawMessage) string {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%.60s", b.String())
}

// kindOf returns the type of a value and, for a GUID, its case.
func kindOf(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil && guidOf.MatchString(text) {
		switch text {
		case strings.ToUpper(text):
			return "a GUID in upper case"
		case strings.ToLower(text):
			return "a GUID in lower case"
		}
	}
	return map[byte]string{'{': "an object", '[': "a list", '"': "a string", 't': "true or false", 'f': "true or false", 'n': "null"}[raw[0]]
}
