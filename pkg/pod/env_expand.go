package pod

import (
	"github.com/winkube/winkube/pkg/podspec"
)

// expandAll expands a command line; nil stays nil, which means "the image's".
func expandAll(words []string, env []Env) []string {
	if len(words) == 0 {
		return nil
	}
	values := make(map[string]string, len(env))
	for _, e := range env {
		values[e.Name] = e.Value
	}
	return podspec.ExpandAll(words, values)
}
