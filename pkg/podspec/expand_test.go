package podspec

import (
	"strings"
	"testing"
)

func TestExpandVars(t *testing.T) {
	vars := map[string]string{"A": "1", "B": "$(A)", "EMPTY": "", "odd name": "o", "$(A": "nested"}
	lookup := func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
	for in, want := range map[string]string{
		"":                 "",
		"plain":            "plain",
		"$(A)":             "1",
		"a$(A)b$(A)c":      "a1b1c",
		"$(B)":             "$(A)", // values are not expanded again
		"$(EMPTY)":         "",
		"$(MISSING)":       "$(MISSING)",
		"$$(A)":            "$(A)",
		"$$$(A)":           "$1",
		"$$$$(A)":          "$$(A)",
		"$":                "$",
		"$$":               "$",
		"a$":               "a$",
		"$A":               "$A",
		"$(":               "$(",
		"$(A":              "$(A",
		"$()":              "$()",
		"$(odd name)":      "o",
		"$($(A))":          "nested)",
		"\xff$\xff$(A)":    "\xff$\xff1",
		"$é$(A)é":          "$é1é",
		"$(A)$(A$(A)":      "1$(A$(A)",
		"100$ and $$5 $(A": "100$ and $5 $(A",
	} {
		if got := Expand(in, lookup); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

func FuzzExpandVars(f *testing.F) {
	for _, s := range []string{"", "$", "$$", "$(A)", "$$(A)", "$(", "a$(A)b", "$($(A))", "\xff$(A"} {
		f.Add(s)
	}
	none := func(string) (string, bool) { return "", false }
	f.Fuzz(func(t *testing.T, s string) {
		if got := Expand(strings.ReplaceAll(s, "$", "$$"), none); got != s {
			t.Errorf("escaped %q became %q", s, got)
		}
		if !strings.Contains(s, "$$") {
			if got := Expand(s, none); got != s {
				t.Errorf("%q without variables became %q", s, got)
			}
		}
	})
}
