package docker

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

// Export returns the file system of a present image as a tar archive, in which the engine may have put files of its own. It is that
// of a container which never starts and goes when the archive is closed. The archive breaks off when the engine sends nothing for
// Config.PullProgressDeadline. Windows engines cannot do it.
func (e *Engine) Export(ctx context.Context, id string) (io.ReadCloser, error) {
	holder, err := e.hold(ctx, identity.HoldFiles, id)
	if err != nil {
		return nil, err
	}
	inner, end := context.WithCancelCause(ctx)
	a := &archive{engine: e, ctx: ctx, holder: holder, inner: inner, end: end}
	a.timer = e.Clock().AfterFunc(e.cfg.PullProgressDeadline, func() { end(noProgress{engine.NoAnswer{Limit: e.cfg.PullProgressDeadline}}) })
	var c *client.Client
	if c, err = e.API(inner); err == nil {
		a.body, err = c.ContainerExport(inner, holder)
	}
	if err != nil {
		err = e.Explain(ctx, inner, "read image "+engine.ShortID(strings.TrimPrefix(id, "sha256:")), err)
		_ = a.Close()
		return nil, err
	}
	return a, nil
}

// hold makes a container of an image that never starts, so that the image can be read; the caller removes it. purpose is part of its
// name: one of each purpose and image can be there at a time.
func (e *Engine) hold(ctx context.Context, purpose, id string) (string, error) {
	digest := engine.ShortID(strings.TrimPrefix(id, "sha256:"))
	creation := Creation{
		Name: identity.HolderName(purpose, e.cfg.Node, digest),
		Config: &container.Config{
			Image: id, Entrypoint: []string{"/never-started"}, Labels: map[string]string{identity.LabelNode: e.cfg.Node, identity.LabelType: identity.TypeHolder},
		},
		HostConfig: &container.HostConfig{NetworkMode: "none"},
	}
	what := "create a container to read image " + digest
	holder, err := e.Create(ctx, what, creation.Name, creation.Config, creation.HostConfig)
	if engine.NameTaken(err) { // left by an agent that was killed
		if err = e.remove(ctx, creation.Name); err == nil {
			holder, err = e.Create(ctx, what, creation.Name, creation.Config, creation.HostConfig)
		}
	}
	return holder, err
}

// sweepHolders removes what hold made for an agent that was killed. Only before anything of this one is held.
func (e *Engine) sweepHolders(ctx context.Context) error {
	var list []container.Summary
	err := e.Call(ctx, "list containers", func(ctx context.Context, c *client.Client) (err error) {
		list, err = c.ContainerList(ctx, container.ListOptions{All: true, Filters: e.node().Holders()})
		return err
	})
	for _, summary := range list {
		if err == nil && identity.IsHolder(summary.Names, summary.Labels) {
			if err = e.remove(ctx, summary.ID); err != nil && engine.StillRuns(err) {
				err = nil // somebody has started it, and may end it
			}
		}
	}
	return err
}

// archive is the export of the container holder, which it removes.
type archive struct {
	engine *Engine
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
	a.timer.Reset(a.engine.cfg.PullProgressDeadline)
	if err != nil && err != io.EOF {
		err = a.engine.Explain(a.ctx, a.inner, "read an image", err)
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
	// Also when the pod is going: the container would stay.
	if removeErr := a.engine.remove(context.WithoutCancel(a.ctx), a.holder); removeErr != nil {
		klog.ErrorS(removeErr, "Cannot remove the container by which an image was read", "container", engine.ShortID(a.holder))
	}
	if err != nil {
		return fmt.Errorf("cannot close the archive of an image: %w", err)
	}
	return nil
}
