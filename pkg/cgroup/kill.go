package cgroup

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// killPatience is how long killed processes have to exit. A process that waits for a disk exits later.
const killPatience = 2 * time.Second

// Kill kills, with SIGKILL, the processes of an engine's container in a pod's cgroup, and waits for their exit. It returns the processes
// found; a container without a cgroup has none. It is for containers that the engine has lost track of and nothing else can stop.
func (t *Tree) Kill(ctx context.Context, g Group, container string) (killed []int, err error) {
	if container == "" || container == "." || container == ".." || strings.Contains(container, "/") {
		return nil, fmt.Errorf("container %q: want the engine's id of one", container)
	}
	name := container
	if t.systemd != nil {
		name = "docker-" + container + ".scope" // the name that Docker's systemd driver uses
	}
	dir := path.Join(t.dir(t.written()[0], g), name)
	deadline := time.NewTimer(killPatience)
	defer deadline.Stop()
	for {
		pids, err := processesBelow(t.files, dir)
		switch {
		case missing(err) || err == nil && len(pids) == 0:
			return killed, nil
		case err != nil:
			return killed, err
		}
		var errs []error
		for _, pid := range pids {
			if !slices.Contains(killed, pid) {
				killed = append(killed, pid)
			}
			errs = append(errs, killProcess(pid))
		}
		if err := errors.Join(errs...); err != nil {
			return killed, err
		}
		select { // the kernel's file sends no events: poll it
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return killed, ctx.Err()
		case <-deadline.C:
			return killed, fmt.Errorf("processes %v were killed and have not ended", pids)
		}
	}
}
