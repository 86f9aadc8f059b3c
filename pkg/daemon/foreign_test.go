package daemon

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type foreignConfig struct {
	metav1.TypeMeta `json:",inline"`
	Name            string          `json:"name"`
	Count           *int32          `json:"count"`
	Rate            float32         `json:"rate"`
	On              bool            `json:"on"`
	Every           metav1.Duration `json:"every"`
	List            []string        `json:"list"`
	Gates           map[string]bool `json:"gates"`
	Inner           *struct {
		Deep int `json:"deep"`
	} `json:"inner"`
}

var testForeign = []Foreign{
	{Flag: "policy", Field: "name", Same: []string{"none"}, Want: "none", Why: "there are no policies"},
	{Flag: "once", Field: "on", Bool: true, Same: []string{"false"}, Want: "false", Why: "it runs on"},
	{Flag: "period", Field: "every", Same: []string{"1m0s"}, Why: "nothing is periodic"},
	{Field: "inner", Want: "no value", Why: "there is nothing in it"},
	{Field: "gates", Want: "no gates", Why: "there are none"},
}

// TestForeignFlags: values that ask for what happens anyway are accepted silently, others are refused or noted.
func TestForeignFlags(t *testing.T) {
	for arg, want := range map[string]string{
		"--policy=none":   "",
		"--policy=":       "",
		"--policy=static": `error: invalid argument "static" for "--policy" flag: want none: there are no policies`,
		"--once=false":    "",
		"--once":          `error: invalid argument "true" for "--once" flag: want false: it runs on`,
		"--period=7s":     "Flag --period has been deprecated, it has no effect: nothing is periodic\n",
		"--unknown":       "error: unknown flag: --unknown",
	} {
		var out bytes.Buffer
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		fs.SetOutput(&out)
		AddForeign(fs, testForeign)
		got := ""
		if err := fs.Parse([]string{arg}); err != nil {
			got = "error: " + err.Error()
		}
		if got += out.String(); got != want {
			t.Errorf("%s: %q, want %q", arg, got, want)
		}
	}
}

// TestForeignFields: fields of files have the same rules, with their place. A flag on the command line overrides its field.
func TestForeignFields(t *testing.T) {
	for _, c := range []struct{ text, args, err, note string }{
		{text: "name: none\nevery: 1m\non: false\n"},
		{text: "count: 1\nname: static\n", err: "FILE:2: name: static: want none: there are no policies"},
		{text: "name: static\n", args: "--policy=none"},
		{text: "every: 7s\n", note: "Ignored every (c.yaml:1): it has no effect: nothing is periodic"},
		{text: "inner: {deep: 3}\n", err: "FILE:1: inner.deep: 3: want no value: there is nothing in it"},
		{text: "gates: {A: true}\n", err: "FILE:1: gates: A=true: want no gates: there are none"},
		{text: "rate: 2\n", note: "Ignored rate (c.yaml:1): it has no effect here"},
	} {
		path := filepath.Join(t.TempDir(), "c.yaml")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		var content foreignConfig
		var file ConfigFile
		if err := file.Read(path, &content); err != nil {
			t.Fatal(err)
		}
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		AddForeign(fs, testForeign)
		if err := fs.Parse(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		file.Follow(fs, nil)
		got := ""
		if err := file.Refused(testForeign, &content); err != nil {
			got = err.Error()
		}
		if want := strings.ReplaceAll(c.err, "FILE", path); got != want {
			t.Errorf("%s: error %q, want %q", c.text, got, want)
		}
		notes := file.Ignored(testForeign, &content, nil, "count")
		if want := slices.DeleteFunc([]string{c.note}, func(s string) bool { return s == "" }); !slices.Equal(notes, want) {
			t.Errorf("%s: notes %q, want %q", c.text, notes, want)
		}
	}
}

// TestComparison: the page finds settings without a class, with two, and refused defaults.
func TestComparison(t *testing.T) {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.Bool("known", false, "what it does")
	fs.Bool("twofold", false, "")
	list := append(testForeign, Foreign{Flag: "twofold", Why: "x"}, Foreign{Field: "nowhere", Why: "x"}, Foreign{Field: "rate", Why: "x"})
	AddForeign(fs, list)
	page, err := Comparison{Program: "p", Kind: "K", Upstream: "known false\npolicy static\nperiod 1m0s\nmissing\ntwofold\n", Flags: fs, Foreign: list,
		Bindings: []Binding{{Path: "rate", Flag: "known"}}, FieldsOnly: map[string]string{"list": "lists"}, Content: &foreignConfig{}}.Page()
	for _, want := range []string{"| `--known` | works | what it does |", "| `--policy` | refused | want none: there are no policies |", "| `--period` | no effect | nothing is periodic |",
		"| `rate` | works | the same as `--known` |", "| `list` | works | lists |", "| `every` | no effect | nothing is periodic |"} {
		if !strings.Contains(page, want+"\n") {
			t.Errorf("no row %s in\n%s", want, page)
		}
	}
	want := "--policy=static, upstream's default, is refused: want none: there are no policies\n--missing is unknown here\n--twofold works, and is in the table of settings that do not\n" +
		"count has 0 classes, want 1\nrate has 2 classes, want 1\nnowhere is no field of K"
	if err == nil || err.Error() != want {
		t.Errorf("problems %v\nwant %s", err, want)
	}
}
