package pod_test

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// fieldRow is a field's row in docs/reference/pod-fields.md: a verdict for each system.
type fieldRow struct{ linux, windows string }

// parseFields parses the table: sections headed by type names, with one row per field. Each field of each type occurs once.
func parseFields(t *testing.T, text string) map[string]map[string]fieldRow {
	t.Helper()
	out := map[string]map[string]fieldRow{}
	var section []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if heading, ok := strings.CutPrefix(line, "### "); ok {
			section = strings.Split(heading, ", ")
			for _, name := range section {
				if out[name] != nil {
					t.Errorf("type %s has two sections", name)
				}
				out[name] = map[string]fieldRow{}
			}
		}
		cells := strings.Split(line, "|")
		if len(cells) != 6 || section == nil || strings.Contains(cells[1], "---") || strings.TrimSpace(cells[1]) == "field" {
			continue
		}
		row := fieldRow{strings.TrimSpace(cells[2]), strings.TrimSpace(cells[3])}
		for _, verdict := range []string{row.linux, row.windows} {
			if !slices.Contains([]string{"yes", "refused", "ignored", "elsewhere"}, verdict) {
				t.Errorf("%s: verdict %q of %s: want yes, refused, ignored or elsewhere", section, verdict, cells[1])
			}
		}
		if row != (fieldRow{"yes", "yes"}) && row != (fieldRow{"yes", "ignored"}) && row != (fieldRow{"yes", "refused"}) &&
			row.linux != "elsewhere" && strings.TrimSpace(cells[4]) == "" {
			t.Errorf("%s: %s is %s without a note that says why", section, cells[1], row.linux)
		}
		for field := range strings.SplitSeq(strings.TrimSpace(cells[1]), ", ") {
			for _, name := range section {
				if _, twice := out[name][field]; twice {
					t.Errorf("field %s of %s has two rows", field, name)
				}
				out[name][field] = row
			}
		}
	}
	return out
}

// TestEveryFieldHasAMeaning walks the API's types from PodSpec on and compares them with docs/reference/pod-fields.md, in both directions.
func TestEveryFieldHasAMeaning(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/pod-fields.md")
	if err != nil {
		t.Fatal(err)
	}
	table := parseFields(t, string(text))
	seen := map[string]bool{}
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || typ.PkgPath() != reflect.TypeFor[v1.Pod]().PkgPath() || seen[typ.Name()] {
			return
		}
		seen[typ.Name()] = true
		rows := table[typ.Name()]
		left := map[string]bool{}
		for field := range rows {
			left[field] = true
		}
		for f := range typ.Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" { // embedded
				walk(f.Type)
				continue
			}
			row, ok := rows[name]
			if !ok {
				t.Errorf("docs/reference/pod-fields.md says nothing of %s in %s: what does it mean here?", name, typ.Name())
				continue
			}
			delete(left, name)
			if row.linux == "yes" || row.windows == "yes" {
				walk(f.Type)
			}
		}
		for field := range left {
			t.Errorf("docs/reference/pod-fields.md has %s in %s, which the API has not", field, typ.Name())
		}
	}
	walk(reflect.TypeFor[v1.PodSpec]())
	for name := range table {
		if !seen[name] {
			t.Errorf("docs/reference/pod-fields.md has a section %s that no pod leads to", name)
		}
	}
	if len(seen) < 60 {
		t.Errorf("the walk found %d types: it is broken", len(seen))
	}
}
