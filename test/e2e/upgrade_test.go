package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/winkube/winkube/test/lab"
)

// TestUpgrade replaces both programs of a node with builds of another version and back; no pod restarts.
func TestUpgrade(t *testing.T) {
	s := newSpace(t)
	s.allReady(3 * time.Minute)
	before := s.snapshot()
	node := cluster.Nodes[1]
	dir := t.TempDir()
	packages := map[string]string{"kubelet": "./cmd/kubelet", "proxy": "./cmd/kube-proxy"}
	for name, pkg := range packages { // with the flags of hack/build.sh
		s.must(cluster.Logged(t.Context(), "upgrade-build", cluster.Root, []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-buildvcs=false", "-tags=grpcnotrace",
			"-ldflags=-s -w -X github.com/winkube/winkube/pkg/daemon.Version=0.0.1-other", "-o", filepath.Join(dir, name), pkg))
	}
	t.Cleanup(func() {
		for name := range packages {
			path := cluster.Binary(name)
			if _, err := os.Stat(path + ".old"); err == nil {
				t.Error(errors.Join(os.Rename(path+".old", path), node.Process(name).Restart(context.Background())))
			}
		}
	})
	for name := range packages {
		path := cluster.Binary(name)
		begin := time.Now()
		s.must(os.Rename(path, path+".old"))
		s.must(copyFile(filepath.Join(dir, name), path))
		s.runs(node, name, path)
		s.must(os.Rename(path+".old", path))
		s.runs(node, name, path)
		t.Logf("%s: there and back in %.1f s", name, time.Since(begin).Seconds())
	}
	s.allReady(3 * time.Minute)
	if diff := difference(before, s.snapshot()); diff != "" {
		t.Errorf("containers or restart counts changed:\n%s", diff)
	}
}

// copyFile copies a program, also between file systems.
func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}

// runs restarts a process and requires that it is healthy and runs the program at path.
func (s *space) runs(node *lab.Host, name, path string) {
	s.Helper()
	s.must(node.Process(name).Restart(s.Context()))
	port := map[string]string{"kubelet": "10248", "proxy": "10256"}[name]
	s.eventually(time.Minute, name+" healthy", func(ctx context.Context) error {
		_, err := node.Exec(ctx, filepath.Join(cluster.Tools, "sample"), "get", "http://127.0.0.1:"+port+"/healthz")
		return err
	})
	pid, _ := node.Process(name).PID()
	running, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	s.must(err)
	wanted, err := os.Stat(path)
	s.must(err)
	if !os.SameFile(running, wanted) {
		s.Errorf("process %d is not of %s", pid, path)
	}
}
