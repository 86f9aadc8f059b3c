package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// crun is the runtime that RUNTIME can select instead of runc, from Debian's package.
const crun = "crun"

// CheckRuntime returns an error unless name is a value of RUNTIME that suits an engine, by its value of ENGINE; "" is runc.
func CheckRuntime(name, engine string) error {
	if name != "" && name != crun && name != RuncPrivileged {
		return fmt.Errorf("RUNTIME: got %q, want %s or %s, or nothing for runc", name, crun, RuncPrivileged)
	}
	if name == crun && releaseOf(engine) != nil { // "unknown version specified", of the OCI specification: containers/crun#1485
		return fmt.Errorf("RUNTIME: Debian's %s is too old for ENGINE=%s: leave one out", crun, engine)
	}
	return nil
}

// runtimeFile records the running cluster's RUNTIME, as releaseFile does its ENGINE. Down removes it.
func runtimeFile() string { return filepath.Join(runDir, "runtime") }

func runningRuntime() string {
	data, err := os.ReadFile(runtimeFile())
	if err != nil {
		return ""
	}
	return string(data)
}

// upRuntime installs RUNTIME. It rejects one that does not suit the engine or is not the running cluster's: dockerd reads
// its runtimes at its start.
func (c *Cluster) upRuntime(ctx context.Context) error {
	if err := CheckRuntime(c.Runtime, c.Engine); err != nil {
		return err
	}
	if have, err := os.ReadFile(runtimeFile()); err == nil && string(have) != c.Runtime {
		return fmt.Errorf("RUNTIME: the cluster runs with %q, want %q (nothing is runc): run make down, then try again", have, c.Runtime)
	}
	if c.Runtime == crun {
		if err := c.logged(ctx, "packages-crun", c.Root, nil, "hack/ensure-packages.sh", crun); err != nil {
			return err
		}
	}
	if err := c.upStandardRoot(ctx); err != nil {
		return err
	}
	return os.WriteFile(runtimeFile(), []byte(c.Runtime), 0o644)
}

// hybrid is the mount of version 2 beside version 1.
const hybrid = "/sys/fs/cgroup/unified"

// crunWithoutHybrid runs crun where it does not see version 2: where that has a controller that version 1 lacks, Debian's
// crun refuses each container ("cgroups in hybrid mode not supported, drop all controllers from cgroupv2").
const crunWithoutHybrid = `#!/bin/sh
exec unshare --mount --propagation private sh -c 'umount --lazy ` + hybrid + `; exec %[1]s "$@"' %[1]s "$@"
`

// runtimePath returns the path of the host's default runtime.
func (h *Host) runtimePath() (string, error) {
	if h.cluster.Runtime == RuncPrivileged {
		wrapper := h.Dir(RuncPrivileged)
		return wrapper, os.WriteFile(wrapper, fmt.Appendf(nil, runcPrivileged, system(h.program("runc"))), 0o755)
	}
	path := system(h.cluster.Runtime)
	controllers, err := os.ReadFile(filepath.Join(hybrid, "cgroup.controllers"))
	if h.cluster.Runtime != crun || err != nil || strings.TrimSpace(string(controllers)) == "" {
		return path, nil
	}
	wrapper := h.Dir("crun")
	return wrapper, os.WriteFile(wrapper, fmt.Appendf(nil, crunWithoutHybrid, path), 0o755)
}

// runtimes are dockerd's settings of runtimes.
func (h *Host) runtimes() (map[string]any, error) {
	second := map[string]any{RuntimeHandler: map[string]string{"path": h.program("runc")}}
	if h.cluster.Runtime == "" {
		return map[string]any{"runtimes": second}, nil
	}
	program, err := h.runtimePath()
	path := map[string]string{"path": program}
	return map[string]any{"default-runtime": h.cluster.Runtime, "runtimes": map[string]any{RuntimeHandler: path, h.cluster.Runtime: path}}, err
}
