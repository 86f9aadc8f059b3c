package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestStepFailure(t *testing.T) {
	log := filepath.Join(t.TempDir(), "x.log")
	var lines strings.Builder
	for i := range 30 {
		fmt.Fprintf(&lines, "line %d\n", i)
	}
	if err := os.WriteFile(log, []byte(lines.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	steps := newSteps(&out)
	if err := steps.Run(context.Background(), "good", func(context.Context) error { steps.note("built"); return nil }); err != nil {
		t.Fatal(err)
	}
	cause := errors.New("it ended")
	err := steps.Run(context.Background(), "bad", func(context.Context) error {
		return fmt.Errorf("etcd: %w", &LogError{Err: cause, Log: log})
	})
	if !errors.Is(err, cause) {
		t.Errorf("error is %v", err)
	}
	for _, want := range []string{"[   0.0s] good ... ok\n", " built\n", "bad ... FAILED: etcd: it ended\n", "  line 10\n", "  line 29\n", "the whole log: " + log} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "line 9\n") {
		t.Errorf("more than 20 lines of the log in\n%s", out.String())
	}
}

func TestFindRoot(t *testing.T) {
	root, err := FindRoot()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "test/lab/lab.go")); err != nil {
		t.Error(err)
	}
	t.Chdir(t.TempDir())
	if root, err := FindRoot(); err == nil {
		t.Errorf("found %s where no repository is", root)
	}
}
