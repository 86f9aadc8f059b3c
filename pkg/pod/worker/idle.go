package worker

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
)

// idle lists what the engine reports as not running: the attempts of a container, or the sandboxes if container is "".
func (s *steps) idle(container string) (ids []string) {
	if container == "" {
		for _, box := range s.seen.Engine.Sandboxes {
			if !box.Running {
				ids = append(ids, box.ID)
			}
		}
		return ids
	}
	for i := range s.seen.Engine.Containers {
		if c := &s.seen.Engine.Containers[i]; c.Name == container && (c.State == pod.Created || c.State == pod.Exited) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// endIdle kills processes that run in these containers nevertheless, before replacements start. An engine that was stopped while it started
// a container may have lost track of it and could assign its address again.
func endIdle(ctx context.Context, cgroups pod.Cgroups, desired *v1.Pod, ids []string) error {
	if cgroups == nil {
		return nil
	}
	var errs []error
	for _, id := range ids {
		errs = append(errs, cgroups.End(ctx, desired, id))
	}
	return errors.Join(errs...)
}
