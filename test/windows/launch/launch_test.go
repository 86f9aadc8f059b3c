package launch

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestLost: a program that ends without a word is started again, one that says why it ends is not.
func TestLost(t *testing.T) {
	for _, test := range []struct {
		name, script, want string
		runs               int
	}{
		{"lost once", "[ $(wc -l <runs) = 2 ] || exit 53; echo ready; exec sleep 60", "ready\n", 2},
		{"lost each time", "exit 53", "", starts},
		{"it says why", "echo no such flag; exit 1", "no such flag\n", 1},
		{"it runs", "echo ready; exec sleep 60", "ready\n", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "sh", "-c", "echo >>runs; "+test.script)
			cmd.Dir = t.TempDir()
			one := Start(t, test.name, cmd)
			one.Kill()
			runs, err := os.ReadFile(filepath.Join(cmd.Dir, "runs"))
			if err != nil || len(runs) != test.runs || one.Log() != test.want {
				t.Errorf("ran %d times (%v), printed %q, want %d and %q", len(runs), err, one.Log(), test.runs, test.want)
			}
		})
	}
}
