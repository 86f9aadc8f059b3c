package replay

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"github.com/winkube/winkube/pkg/record"
)

// pseudonym matches the placeholders that a recording uses in place of names.
var pseudonym = regexp.MustCompile(`\b(name|image|domain|adapter|host|owner|label)-[0-9]+\b|\bREDACTED\b`)

// same reports whether a text equals the recorded one. A pseudonym matches anything.
func same(recorded, now string) bool {
	if recorded == now {
		return true
	}
	if !pseudonym.MatchString(recorded) {
		return false
	}
	pattern, last := "^(?s)", 0
	for _, at := range pseudonym.FindAllStringIndex(recorded, -1) {
		pattern += regexp.QuoteMeta(recorded[last:at[0]]) + ".+"
		last = at[1]
	}
	return regexp.MustCompile(pattern + regexp.QuoteMeta(recorded[last:]) + "$").MatchString(now)
}

// differences returns how arguments differ from the recorded ones, one line each.
func differences(recorded, now []json.RawMessage) []string {
	if len(recorded) != len(now) {
		return []string{fmt.Sprintf("%d arguments, recorded are %d", len(now), len(recorded))}
	}
	var out []string
	for i := range recorded {
		var a, b any
		if json.Unmarshal(recorded[i], &a) != nil || json.Unmarshal(now[i], &b) != nil {
			out = append(out, fmt.Sprintf("argument %d is no JSON", i+1))
			continue
		}
		out = append(out, compare(fmt.Sprintf("argument %d", i+1), a, b)...)
	}
	return out
}

func compare(where string, recorded, now any) (out []string) {
	if text, ok := recorded.(string); ok {
		if now, ok := now.(string); ok && same(text, now) {
			return nil
		}
	}
	switch a := recorded.(type) {
	case map[string]any:
		b, ok := now.(map[string]any)
		if !ok {
			break
		}
		for _, key := range slices.Sorted(maps.Keys(a)) {
			value, there := b[key]
			switch {
			case record.Secret(key):
			case !there:
				out = append(out, fmt.Sprintf("%s.%s: recorded %s, now absent", where, key, text(a[key])))
			default:
				out = append(out, compare(where+"."+key, a[key], value)...)
			}
		}
		for _, key := range slices.Sorted(maps.Keys(b)) {
			if _, there := a[key]; !there && !record.Secret(key) {
				out = append(out, fmt.Sprintf("%s.%s: recorded absent, now %s", where, key, text(b[key])))
			}
		}
		return out
	case []any:
		b, ok := now.([]any)
		if !ok || len(a) != len(b) {
			break
		}
		for i := range a {
			out = append(out, compare(fmt.Sprintf("%s[%d]", where, i), a[i], b[i])...)
		}
		return out
	default:
		if text(recorded) == text(now) {
			return nil
		}
	}
	return []string{fmt.Sprintf("%s: recorded %s, now %s", where, text(recorded), text(now))}
}

func text(v any) string {
	out, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(out)
}
