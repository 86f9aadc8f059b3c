package images

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/docker/identity"
)

// Export returns the file system of a present image as a tar archive; the engine may have added files. Export uses a container that never starts;
// closing the archive removes it. The archive fails when the engine sends nothing for Config.Deadline. Windows engines do not support it.
func (s *Store) Export(ctx context.Context, id string) (io.ReadCloser, error) {
	holder, err := s.hold(ctx, identity.HoldFiles, id)
	if err != nil {
		return nil, err
	}
	inner, end := context.WithCancelCause(ctx)
	a := &archive{images: s, ctx: ctx, holder: holder, inner: inner, end: end}
	a.timer = s.engine.Clock().AfterFunc(s.cfg.Deadline, func() { end(noProgress{engine.NoAnswer{Limit: s.cfg.Deadline}}) })
	var c *client.Client
	if c, err = s.engine.API(inner); err == nil {
		a.body, err = c.ContainerExport(inner, holder)
	}
	if err != nil {
		err = s.engine.Explain(ctx, inner, "read image "+engine.ShortID(strings.TrimPrefix(id, "sha256:")), err)
		_ = a.Close()
		return nil, err
	}
	return a, nil
}

// hold creates a container that never starts, so that its image can be read; the caller removes it. purpose is part of its name: only one per purpose
// and image can exist at a time.
func (s *Store) hold(ctx context.Context, purpose, id string) (string, error) {
	digest := engine.ShortID(strings.TrimPrefix(id, "sha256:"))
	name := identity.HolderName(purpose, string(s.node), digest)
	config := &container.Config{
		Image: id, Entrypoint: []string{"/never-started"}, Labels: map[string]string{identity.LabelNode: string(s.node), identity.LabelType: identity.TypeHolder},
	}
	host := &container.HostConfig{NetworkMode: "none"}
	what := "create a container to read image " + digest
	holder, err := s.engine.Create(ctx, what, name, config, host)
	if engine.NameTaken(err) { // left by a killed agent
		if err = s.remove(ctx, name); err == nil {
			holder, err = s.engine.Create(ctx, what, name, config, host)
		}
	}
	return holder, err
}

// remove deletes a container that hold made.
func (s *Store) remove(ctx context.Context, id string) error {
	_, err := s.engine.Remove(ctx, id)
	return err
}

// SweepHolders removes containers that hold created for a killed agent. Call it before this agent holds any image.
func (s *Store) SweepHolders(ctx context.Context) error {
	var list []container.Summary
	err := s.engine.Call(ctx, "list containers", func(ctx context.Context, c *client.Client) (err error) {
		list, err = c.ContainerList(ctx, container.ListOptions{All: true, Filters: s.node.Holders()})
		return err
	})
	for _, summary := range list {
		if err == nil && identity.IsHolder(summary.Names, summary.Labels) {
			if err = s.remove(ctx, summary.ID); err != nil && engine.StillRuns(err) {
				err = nil // a user has started it, and may stop it
			}
		}
	}
	return err
}

// archive is the export of the container holder, which it removes.
type archive struct {
	images *Store
	holder string
	ctx    context.Context
	inner  context.Context
	end    context.CancelCauseFunc
	timer  interface {
		Reset(d time.Duration) bool
		Stop() bool
	}
	body io.ReadCloser
}

func (a *archive) Read(p []byte) (int, error) {
	n, err := a.body.Read(p)
	a.timer.Reset(a.images.cfg.Deadline)
	if err != nil && err != io.EOF {
		err = a.images.engine.Explain(a.ctx, a.inner, "read an image", err)
	}
	return n, err
}

func (a *archive) Close() error {
	a.timer.Stop()
	a.end(context.Canceled)
	var err error
	if a.body != nil {
		err = a.body.Close()
	}
	// Also if ctx has ended: otherwise the container would remain.
	if removeErr := a.images.remove(context.WithoutCancel(a.ctx), a.holder); removeErr != nil {
		klog.ErrorS(removeErr, "Cannot remove the temporary container for reading an image", "container", engine.ShortID(a.holder))
	}
	if err != nil {
		return fmt.Errorf("cannot close the archive of an image: %w", err)
	}
	return nil
}
