// Package output runs a program and keeps what it prints apart from what libraries print: standard output is the program's answer and may be
// parsed, standard error is for people. A test that reads both as one passes or fails by the state of the machine.
package output

import (
	"bytes"
	"os/exec"
	"strings"
)

// Said is what a program printed.
type Said struct{ Stdout, Stderr string }

// String is all of it, for an error or a log: what went wrong comes first.
func (s Said) String() string {
	return strings.TrimSpace(strings.TrimSpace(s.Stderr) + "\n" + strings.TrimSpace(s.Stdout))
}

// Of runs a program to its end.
func Of(cmd *exec.Cmd) (Said, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	return Said{stdout.String(), stderr.String()}, err
}
