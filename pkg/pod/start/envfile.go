package start

import (
	"fmt"
	"strings"
)

// parseEnvFile finds key in an environment file (API field EnvVarSource.fileKeyRef, KEP-3721) with lines NAME='value'. A value may span
// lines and has no special characters. A comment may follow it. Empty lines and lines that start with # are skipped. If a blank follows the
// equals sign, the variable is empty. Lines after the first match are not checked.
func parseEnvFile(text, key string) (value string, found bool, err error) {
	rest := strings.ReplaceAll(text, "\r\n", "\n")
	for line := 1; rest != ""; {
		head, tail, _ := strings.Cut(rest, "\n")
		entry := strings.TrimLeft(head, " \t")
		if entry == "" || entry[0] == '#' {
			rest, line = tail, line+1
			continue
		}
		name, raw, ok := strings.Cut(entry, "=")
		if !ok {
			return "", false, fmt.Errorf("line %d has no '='; want NAME='value'", line)
		}
		if name == "" || strings.TrimRight(name, " \t") != name {
			return "", false, fmt.Errorf("line %d: want a name directly before '='", line)
		}
		if raw != "" && (raw[0] == ' ' || raw[0] == '\t') {
			if name == key {
				return "", true, nil
			}
			rest, line = tail, line+1
			continue
		}
		if raw == "" || raw[0] != '\'' {
			return "", false, fmt.Errorf("line %d: the value must be in single quotes", line)
		}
		// The value starts in rest, after the quote.
		rest = rest[len(head)-len(raw)+1:]
		value, after, closed := strings.Cut(rest, "'")
		if !closed {
			return "", false, fmt.Errorf("line %d: the single quote is never closed", line)
		}
		line += strings.Count(value, "\n") + 1
		comment, next, _ := strings.Cut(after, "\n")
		if comment = strings.TrimLeft(comment, " \t"); comment != "" && comment[0] != '#' {
			return "", false, fmt.Errorf("line %d: only a comment may follow the closing quote", line-1)
		}
		if name == key {
			return value, true, nil
		}
		rest = next
	}
	return "", false, nil
}
