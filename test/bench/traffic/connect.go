//go:build linux

package traffic

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	balancer "github.com/winkube/winkube/pkg/proxy/connect"
)

// connect is our proxy in mode connect: the kernel selects the endpoint for clients in a cgroup, before the relay sees
// them.
func (r *rig) connect(ctx context.Context) side {
	missing := func(err error) side { return side{name: "connect", namespace: chosen, missing: err.Error()} }
	root, err := balancer.RootCgroup()
	if err != nil {
		return missing(err)
	}
	cgroup := filepath.Join(root, chosen)
	if err := os.MkdirAll(cgroup, 0o755); err != nil {
		return missing(err)
	}
	s := r.relay(ctx, "connect", chosen, r.program(), "--proxy-mode=connect", "--connect-cgroup="+cgroup)
	s.cgroup = cgroup
	return s
}

// into makes a program start in the side's cgroup. The caller closes the result.
func (s *side) into(cmd *exec.Cmd) (io.Closer, error) {
	if s.cgroup == "" {
		return io.NopCloser(nil), nil
	}
	dir, err := os.Open(s.cgroup)
	if err == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	}
	return dir, err
}
