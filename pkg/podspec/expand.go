package podspec

import "strings"

// Expand replaces every $(NAME) in s by lookup's value. Unknown names stay unchanged, $$ becomes one dollar sign, and other dollar signs
// stay. Values are not expanded again. (API fields Container.env, .command, .args.)
func Expand(s string, lookup func(name string) (string, bool)) string {
	if !strings.Contains(s, "$") {
		return s
	}
	var out strings.Builder
	for {
		dollar := strings.IndexByte(s, '$')
		if dollar < 0 || dollar == len(s)-1 {
			out.WriteString(s)
			return out.String()
		}
		out.WriteString(s[:dollar])
		s = s[dollar:]
		switch s[1] {
		case '$':
			out.WriteByte('$')
			s = s[2:]
		case '(':
			end := strings.IndexByte(s, ')')
			if end < 0 {
				out.WriteString("$(")
				s = s[2:]
				continue
			}
			if value, known := lookup(s[2:end]); known {
				out.WriteString(value)
			} else {
				out.WriteString(s[:end+1])
			}
			s = s[end+1:]
		default:
			out.WriteByte('$')
			s = s[1:]
		}
	}
}

// ExpandAll expands each word of a command line, with values by name.
func ExpandAll(words []string, values map[string]string) []string {
	out := make([]string, len(words))
	for i, word := range words {
		out[i] = Expand(word, func(name string) (string, bool) {
			value, known := values[name]
			return value, known
		})
	}
	return out
}
