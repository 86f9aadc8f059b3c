package record

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"

	"github.com/winkube/winkube/pkg/command"
)

// runner is a command.Runner that records its calls.
type runner struct {
	next command.Runner
	r    *Recorder
}

// Runner records the programs that next runs. For a netsh script file it records the lines of the script instead of its path.
func (r *Recorder) Runner(next command.Runner) command.Runner {
	if r == nil {
		return next
	}
	return &runner{next, r}
}

// ScriptName replaces the path of a netsh script in a recording.
const ScriptName = "SCRIPT"

// Run implements command.Runner.
func (r *runner) Run(ctx context.Context, stdin []byte, name string, args ...string) ([]byte, error) {
	in := []json.RawMessage{}
	shown := append([]string(nil), args...)
	if len(stdin) > 0 {
		in = append(in, encode(strings.Split(string(stdin), "\n")))
	}
	if len(args) == 2 && args[0] == "-f" {
		if script, err := os.ReadFile(args[1]); err == nil {
			shown[1] = ScriptName
			in = append(in, encode(strings.Split(strings.TrimSpace(strings.ReplaceAll(string(script), "\r", "")), "\n")))
		}
	}
	open := r.r.ask(strings.TrimSuffix(name, ".exe"), strings.Join(append([]string{name}, shown...), " "), in...)
	out, err := r.next.Run(ctx, stdin, name, args...)
	code, said, failed := uint32(0), string(out), (*command.ExitError)(nil)
	if errors.As(err, &failed) {
		code = uint32(failed.Code)
		if said == "" {
			said = failed.Output
		}
	}
	open.answer(code, err, encode(strings.Split(strings.ReplaceAll(said, "\r", ""), "\n")))
	return out, err
}
