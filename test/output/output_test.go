package output

import (
	"os/exec"
	"strings"
	"testing"
)

func TestOf(t *testing.T) {
	said, err := Of(exec.CommandContext(t.Context(), "sh", "-c", "echo noise >&2; echo answer; echo more noise >&2"))
	if err != nil || said.Stdout != "answer\n" || said.Stderr != "noise\nmore noise\n" {
		t.Errorf("got %+v, %v", said, err)
	}
	if got, want := said.String(), "noise\nmore noise\nanswer"; got != want {
		t.Errorf("all of it is %q, want %q", got, want)
	}
	said, err = Of(exec.CommandContext(t.Context(), "sh", "-c", "echo why >&2; exit 3"))
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || said.Stdout != "" || said.String() != "why" {
		t.Errorf("of a program that fails: %+v, %v", said, err)
	}
}
