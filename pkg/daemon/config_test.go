package daemon

import (
	"maps"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type testConfig struct {
	metav1.TypeMeta `json:",inline"`
	Name            string             `json:"name"`
	Count           *int32             `json:"count"`
	Rate            float32            `json:"rate"`
	On              bool               `json:"on"`
	Every           metav1.Duration    `json:"every"`
	List            []string           `json:"list"`
	Gates           map[string]bool    `json:"gates,omitempty"`
	Inner           struct{ Deep int } `json:"inner"`
	Items           []struct {
		Pattern string `json:"pattern"`
	} `json:"items"`
}

func TestReadConfig(t *testing.T) {
	var c testConfig
	lines, err := ReadConfig([]byte(`# a comment
apiVersion: x/v1
kind: Config
name: a
count: 0
rate: 2.5
on: false
every: 1m30s
list:
- a
- b
gates: {A: true}
items:
- pattern: "x*"
inner: null
`), &c)
	if err != nil {
		t.Fatal(err)
	}
	if c.Name != "a" || c.Count == nil || c.Rate != 2.5 || c.Every.Seconds() != 90 || len(c.List) != 2 || !c.Gates["A"] || c.Items[0].Pattern != "x*" || c.Kind != "Config" {
		t.Errorf("read %+v", c)
	}
	want := Lines{"apiVersion": 2, "kind": 3, "name": 4, "count": 5, "rate": 6, "every": 8, "list": 10, "list[0]": 10, "list[1]": 11, "gates": 12, "gates.A": 12, "items": 14, "items[0].pattern": 14}
	if !maps.Equal(lines, want) {
		t.Errorf("lines %v, want %v", lines, want)
	}
	for _, empty := range []string{"", "# nothing\n", "{}"} {
		if lines, err := ReadConfig([]byte(empty), &c); err != nil || len(lines) > 0 {
			t.Errorf("%q: %v, %v", empty, lines, err)
		}
	}
	if lines, err := ReadConfig([]byte(`{"name": "json", "list": ["x"]}`), &c); err != nil || c.Name != "json" || lines["list"] != 1 {
		t.Errorf("JSON: %+v, %v, %v", c, lines, err)
	}
}

// TestReadConfigIsStrict: each error includes its line, and all are reported together.
func TestReadConfigIsStrict(t *testing.T) {
	for text, want := range map[string][]string{
		"name: a\nnane: b": {"line 2: nane: unknown field"},
		"Name: b":          {"line 1: Name: unknown field; want name"},
		"APIVersion: b":    {"want apiVersion"},
		"count: many\nevery: 5 minutes\non: maybe": {`line 1: count: "many" is no number`, `line 2: every: "5 minutes" is no duration such as 30s`, `line 3: on: "maybe" is no true or false`},
		"list: a":                           {"line 1: list: "},
		"gates: {A: 1}":                     {"line 1: gates.A: "},
		"items:\n- pattern: x\n- patern: y": {"line 3: items[1].patern: unknown field"},
		"name: a\nname: b":                  {"line 2: name: is given twice"},
		"name: [":                           {"line 1"},
		"- a":                               {"line 1"},
	} {
		_, err := ReadConfig([]byte(text), &testConfig{})
		for _, part := range want {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%q: %v, want %s", text, err, part)
			}
		}
	}
}

func FuzzReadConfig(f *testing.F) {
	f.Add("name: a\nlist: [x]\n")
	f.Add("a: &x {b: *x}")
	f.Add("items: [{pattern: !!binary aGk=}]\n---\nname: b")
	f.Fuzz(func(_ *testing.T, text string) { _, _ = ReadConfig([]byte(text), &testConfig{}) }) // it must end without a panic
}
