// Package output runs a program and separates its standard output from its standard error: standard output is the
// program's result and may be parsed, but libraries may also print to standard error. A test that reads both as one
// passes or fails depending on the machine's state.
package output

import (
	"bytes"
	"os/exec"
	"strings"
)

// Said is what a program printed.
type Said struct{ Stdout, Stderr string }

// String returns all output for an error or a log, standard error first.
func (s Said) String() string {
	return strings.TrimSpace(strings.TrimSpace(s.Stderr) + "\n" + strings.TrimSpace(s.Stdout))
}

// Of runs a program and waits until it exits.
func Of(cmd *exec.Cmd) (Said, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	return Said{stdout.String(), stderr.String()}, err
}
