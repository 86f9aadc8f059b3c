package probe

import "strings"

// expand replaces $(NAME) in an exec probe's command by env's literal values; $$ is a dollar sign, unknown names stay. It is the
// expansion of Container.command; upstream does it for probes too, from literal values alone.
func expand(argv, env []string) []string {
	values := make(map[string]string, len(env))
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		values[name] = value
	}
	out := make([]string, len(argv))
	for i, word := range argv {
		var b strings.Builder
		for word != "" {
			before, rest, found := strings.Cut(word, "$")
			b.WriteString(before)
			if !found {
				break
			}
			word = rest
			name, after, closed := strings.Cut(strings.TrimPrefix(rest, "("), ")")
			value, known := values[name]
			switch {
			case strings.HasPrefix(rest, "$"):
				b.WriteByte('$')
				word = rest[1:]
			case strings.HasPrefix(rest, "(") && closed && known:
				b.WriteString(value)
				word = after
			case strings.HasPrefix(rest, "(") && closed:
				b.WriteString("$(" + name + ")")
				word = after
			default:
				b.WriteByte('$')
			}
		}
		out[i] = b.String()
	}
	return out
}
