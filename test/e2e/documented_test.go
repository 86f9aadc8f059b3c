package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/winkube/winkube/test/output"
	"github.com/winkube/winkube/test/page"
)

// TestDocumentedCommands runs the commands in the blocks of docs/hacking.md that are cheap and do not change the
// cluster: each succeeds and prints something.
func TestDocumentedCommands(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(cluster.Root, "docs/hacking.md"))
	if err != nil {
		t.Fatal(err)
	}
	work := t.TempDir() // the files that the page names
	pod, err := os.ReadFile(filepath.Join(cluster.Root, "build/samples/emptydir.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	services, err := cluster.Kubectl(t.Context(), "get", "services,endpointslices", "-A", "-o", "yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"pod.yaml": string(pod), "services.yaml": services} {
		if err := os.WriteFile(filepath.Join(work, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	env := append(os.Environ(), "KUBECONFIG="+cluster.Kubeconfig(),
		"PATH="+strings.Join([]string{cluster.Tools, filepath.Dir(cluster.Binary("kubelet")), os.Getenv("PATH")}, string(filepath.ListSeparator)))
	ran := 0
	for _, c := range page.Commands(string(text), "go", "kubectl", "kubelet", "proxy", "curl") {
		if !c.Block || c.Argv[0] == "go" && !asks(c.Argv) {
			continue
		}
		ran++
		t.Run(strings.Join(c.Argv[:min(len(c.Argv), 5)], " "), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // the program may have to be built first
			defer cancel()
			bash := []string{"bash", "-euo", "pipefail", "-c", c.Text}
			cmd := exec.CommandContext(ctx, bash[0], bash[1:]...)
			if c.Argv[0] == "curl" {
				cmd = cluster.Nodes[0].Command(ctx, bash...) // the page says so
			}
			cmd.Env, cmd.Dir = env, work
			if c.Argv[0] == "go" {
				cmd.Dir = cluster.Root
			}
			said, err := output.Of(cmd)
			if err != nil || strings.TrimSpace(said.Stdout) == "" {
				t.Errorf("docs/hacking.md:%d: %s: %v\n%s", c.Line, c.Text, err, said)
			}
		})
	}
	if ran < 7 {
		t.Errorf("found only %d commands: this test does not read the page", ran)
	}
}

// asks reports whether a command of hack/cluster is read-only.
func asks(argv []string) bool {
	return len(argv) > 3 && argv[2] == "./hack/cluster" && slices.Contains([]string{"status", "exec", "kubeconfig", "check", "help"}, argv[3])
}
