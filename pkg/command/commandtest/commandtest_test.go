package commandtest_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/command/commandtest"
)

func TestRunner(t *testing.T) {
	r := commandtest.New()
	lines := []string{}
	r.Install("list", func(stdin []byte, args []string) ([]byte, error) { return []byte(strings.Join(lines, ",")), nil })
	r.Install("add", func(stdin []byte, args []string) ([]byte, error) {
		if len(args) != 1 {
			return nil, commandtest.Exit(2, "usage: add NAME")
		}
		lines = append(lines, args[0]+string(stdin))
		return nil, nil
	})
	r.Script("list", commandtest.Answer{Err: commandtest.Exit(4, "locked")}, commandtest.Answer{Stdout: "scripted"})
	ctx := t.Context()
	if _, err := r.Run(ctx, nil, "list"); err == nil || err.Error() != `cannot run "list": exit status 4: locked` {
		t.Errorf("%v", err)
	}
	if out, err := r.Run(ctx, nil, "list"); err != nil || string(out) != "scripted" {
		t.Errorf("%q, %v", out, err)
	}
	r.Run(ctx, []byte("1\n2\n"), "add", "x")
	if _, err := r.Run(ctx, nil, "add"); err == nil {
		t.Error("model accepted bad arguments")
	}
	if _, err := r.Run(ctx, nil, "del"); !errors.Is(err, command.ErrNotFound) {
		t.Errorf("%v", err)
	}
	want := "$ list\n! exit status 4: locked\n$ list\n$ add x\n< 1\n< 2\n$ add\n! exit status 2: usage: add NAME\n$ del\n! program not found\n"
	if got := r.Transcript(); got != want {
		t.Errorf("transcript:\n%s", got)
	}
	if len(lines) != 1 || r.Transcript() != "" {
		t.Errorf("state: %q", lines)
	}
}

// TestErrors: errors of a missing program are those of the real Runner.
func TestErrors(t *testing.T) {
	_, fake := commandtest.New().Run(t.Context(), nil, "no-such-program", "-a", "b c")
	_, real := command.New().Run(t.Context(), nil, "no-such-program", "-a", "b c")
	if fake == nil || real == nil || !errors.Is(real, command.ErrNotFound) || !strings.HasPrefix(real.Error(), fake.Error()) {
		t.Errorf("error is %v, that of the real Runner is %v", fake, real)
	}
}
