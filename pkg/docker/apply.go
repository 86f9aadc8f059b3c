package docker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/docker/identity"
	"github.com/winkube/winkube/pkg/pod"
)

// Apply does one step. Errors of the engine are of type *engine.ApplyError.
func (e *Engine) Apply(ctx context.Context, p *v1.Pod, step pod.Step) error {
	switch step.Action {
	case pod.CreateSandbox:
		err := failed(engine.ReasonSandbox, e.createSandbox(ctx, p, step))
		var apply *engine.ApplyError
		if errors.As(err, &apply) { // to users it is one thing, whichever part of it failed
			return &engine.ApplyError{Reason: engine.ReasonSandbox, Message: apply.Message, Err: apply.Err}
		}
		return err
	case pod.StartContainer:
		return e.startContainer(ctx, p, step)
	case pod.StopSandbox:
		return failed(engine.ReasonKill, e.stop(ctx, step.ID, 0))
	case pod.StopContainer:
		return failed(engine.ReasonKill, e.stop(ctx, step.ID, step.Grace))
	case pod.UpdateContainer:
		return e.update(ctx, step)
	case pod.RemoveSandbox, pod.RemoveContainer:
		err := e.remove(ctx, step.ID)
		if err == nil {
			e.Unlink(p, step.ID)
		}
		return failed(engine.ReasonRemove, err)
	}
	return fmt.Errorf("step %q: must be one of pod's Actions", step.Action)
}

// target gathers what Convert needs of this engine.
func (e *Engine) target(ctx context.Context) (Target, error) {
	t := Target{
		Platform: e.cfg.Platform, Node: e.cfg.Node, Boot: e.cfg.Boot, HostCPUs: e.cfg.CPUs, HyperV: e.HyperV(), LogMaxSize: e.cfg.LogMaxSize, LogMaxFiles: e.cfg.LogMaxFiles,
		CgroupParent: e.cfg.CgroupParent, MinOOMScoreAdj: int(e.minOOM.Load()), SeccompDefault: e.cfg.SeccompDefault,
	}
	if info, known := e.LastInfo(); known {
		t.CPUs = info.CPUs
	}
	err := e.Call(ctx, "connect to the engine", func(_ context.Context, c *client.Client) error {
		t.API = c.ClientVersion()
		return nil
	})
	if err == nil && t.CPUs == 0 {
		var info engine.Info
		info, err = e.Info(ctx)
		t.CPUs = info.CPUs
	}
	return t, err
}

func (e *Engine) createSandbox(ctx context.Context, p *v1.Pod, step pod.Step) error {
	t, err := e.target(ctx)
	if err != nil {
		return err
	}
	if step.Sandbox == nil {
		return errors.New("cannot create a sandbox: step has no Sandbox")
	}
	if err := e.checkRuntime(ctx, step.Sandbox.Runtime); err != nil {
		return err
	}
	if err = e.setHostAddresses(&t, p); err != nil {
		return failed(engine.ReasonCreate, err)
	}
	return e.createAndStart(ctx, p, t, func(t Target) (Creation, error) {
		return ConvertSandbox(p, step, e.cfg.InfraImage, t)
	})
}

func (e *Engine) startContainer(ctx context.Context, p *v1.Pod, step pod.Step) error {
	t, err := e.target(ctx)
	if err != nil {
		return failed(engine.ReasonCreate, err)
	}
	c := find(p, step)
	if c == nil || step.Inputs == nil {
		return failed(engine.ReasonConfig, fmt.Errorf("cannot start %s container %q: the pod has none of that name, or step has no Inputs", step.Kind, step.Container))
	}
	if e.cfg.Hash != nil {
		t.Hash = e.cfg.Hash(c)
	}
	if name := localhostProfile(p, c); name != "" && t.Platform.OS == "linux" {
		if !filepath.IsLocal(name) {
			return failed(engine.ReasonConfig, fmt.Errorf("container %s: localhostProfile %q: must be a path below the seccomp directory", c.Name, name))
		}
		data, err := os.ReadFile(filepath.Join(e.cfg.SeccompRoot, name))
		if err != nil {
			return failed(engine.ReasonConfig, fmt.Errorf("cannot read seccomp profile of container %s: %w", c.Name, err))
		}
		t.SeccompProfile = string(data)
	}
	if t.Accounts, err = e.accountsFor(ctx, p, c, step.Inputs.Image); err != nil {
		return failed(engine.ReasonCreate, err)
	}
	if err = e.setHostAddresses(&t, p); err != nil {
		return failed(engine.ReasonCreate, err)
	}
	return e.createAndStart(ctx, p, t, func(t Target) (Creation, error) { return Convert(p, step, t) })
}

// setHostAddresses gives t what Convert must know of the host for the hostPorts of p, if it has any.
func (e *Engine) setHostAddresses(t *Target, p *v1.Pod) error {
	ports, err := hostPorts(p)
	if err != nil || len(ports) == 0 {
		return nil //nolint:nilerr // a mistake in them is Convert's to tell
	}
	for _, from := range []struct {
		list func() ([]netip.Addr, error)
		to   *[]netip.Addr
	}{{e.cfg.HostAddresses, &t.HostAddresses}, {e.cfg.HostIPs, &t.HostIPs}} {
		if from.list == nil {
			continue
		}
		if *from.to, err = from.list(); err != nil {
			return err
		}
	}
	return nil
}

// createAndStart makes a container run. When the host does not let it have its OOM score, it is made again with 0, and all later
// ones begin so.
func (e *Engine) createAndStart(ctx context.Context, p *v1.Pod, t Target, convert func(Target) (Creation, error)) error {
	creation, err := convert(t)
	if err != nil {
		return failed(engine.ReasonConfig, err)
	}
	id, done, err := e.create(ctx, p, creation)
	if err == nil {
		e.Link(p, creation.Config.Labels, id)
	}
	if err != nil || done {
		return failed(engine.ReasonCreate, err)
	}
	err = e.specs.during(creation.Name, creation.CredentialSpec, func() error { return e.start(ctx, id, creation.Name) })
	if err == nil || creation.HostConfig.OomScoreAdj >= 0 || !deniedOOM(err) {
		return failed(engine.ReasonRun, err)
	}
	t.MinOOMScoreAdj = 0
	if creation, err = convert(t); err != nil {
		return failed(engine.ReasonConfig, err)
	}
	if id, done, err = e.create(ctx, p, creation); err != nil || done {
		return failed(engine.ReasonCreate, err)
	}
	e.Link(p, creation.Config.Labels, id)
	if err = e.start(ctx, id, creation.Name); err == nil {
		e.minOOM.Store(0)
		e.warnOOM.Do(func() {
			klog.InfoS("Warning: this host does not let containers have an OOM score below 0 (the engine lacks CAP_SYS_RESOURCE); "+
				"under memory pressure the kernel chooses among them without regard to their QoS", "host", e.Host())
		})
	}
	return failed(engine.ReasonRun, err)
}

// create makes a container that is ready to be started. done: one of this attempt has run already. A leftover that was never started
// is replaced.
func (e *Engine) create(ctx context.Context, p *v1.Pod, creation Creation) (id string, done bool, err error) {
	what := "create container " + creation.Name
	for range 3 {
		id, err = e.Create(ctx, what, creation.Name, creation.Config, creation.HostConfig)
		switch {
		case err == nil:
			e.cache.made(p.UID, id, e.fresh(id, creation))
			return id, false, e.copyIn(ctx, id, creation.Files)
		case cerrdefs.IsNotFound(err) && creation.Config.Labels[identity.LabelType] == identity.TypeSandbox && creation.Config.Image == e.cfg.InfraImage:
			if _, _, pullErr := e.Pull(ctx, e.cfg.InfraImage, nil); pullErr != nil {
				return "", false, fmt.Errorf("cannot get the image of the sandbox: %w", pullErr)
			}
			continue
		case !engine.NameTaken(err):
			return "", false, err
		}
		holder, inspectErr := e.Inspect(ctx, creation.Name)
		switch {
		case cerrdefs.IsNotFound(inspectErr): // removed just now; some engines also leave a name behind, see below
			continue
		case inspectErr != nil:
			return "", false, inspectErr
		}
		if o, problem := e.node().Own([]string{holder.Name}, holder.Config.Labels); problem != nil || o.UID != p.UID {
			return "", false, fmt.Errorf("cannot %s: container %s, which is not this agent's, has that name; remove it: %w", what, engine.ShortID(holder.ID), err)
		}
		if holder.State.Status != container.StateCreated {
			return holder.ID, true, nil
		}
		if err := e.remove(ctx, holder.ID); err != nil && !engine.StillRuns(err) {
			return "", false, err
		}
	}
	if engine.NameTaken(err) { // by nobody that can be seen: a fault of the engine that only its restart heals
		creation.Name = fmt.Sprintf("%s_%x", creation.Name, e.Clock().Now().UnixNano())
		if id, err = e.Create(ctx, what, creation.Name, creation.Config, creation.HostConfig); err == nil {
			e.cache.made(p.UID, id, e.fresh(id, creation))
			err = e.copyIn(ctx, id, creation.Files)
		}
	}
	return id, false, err
}

// fresh is what inspect would say of a container that was made just now.
func (e *Engine) fresh(id string, c Creation) seen {
	return view(container.InspectResponse{
		ContainerJSONBase: &container.ContainerJSONBase{
			ID: id, Created: e.Clock().Now().UTC().Format(time.RFC3339Nano), State: &container.State{Status: container.StateCreated}, HostConfig: c.HostConfig,
		},
		Config: c.Config,
	}, e.cfg.Boot)
}

func (e *Engine) start(ctx context.Context, id, name string) error {
	e.cache.starting(id)
	err := e.Call(ctx, "start container "+name, func(ctx context.Context, c *client.Client) error {
		return c.ContainerStart(ctx, id, container.StartOptions{})
	})
	if err != nil {
		e.cache.drop(id)
		return err
	}
	e.cache.started(id)
	return nil
}

// stop ends a container: its stop signal, grace (rounded up to seconds), kill. An engine that does not manage it within the grace period
// and some slack is asked once more, to kill.
func (e *Engine) stop(ctx context.Context, id string, grace time.Duration) error {
	defer e.cache.drop(id)
	seconds := wholeSeconds(grace)
	what := "stop container " + engine.ShortID(id)
	err := e.CallWithin(ctx, pod.Seconds(int64(seconds))+e.cfg.StopSlack, what, func(ctx context.Context, c *client.Client) error {
		return c.ContainerStop(ctx, id, container.StopOptions{Timeout: &seconds})
	})
	if err == nil || cerrdefs.IsNotFound(err) {
		return nil
	}
	if ctx.Err() != nil {
		return err
	}
	klog.V(2).InfoS("Killing a container that the engine could not stop", "container", engine.ShortID(id), "reason", err)
	killErr := e.CallWithin(ctx, e.cfg.StopSlack, "kill container "+engine.ShortID(id), func(ctx context.Context, c *client.Client) error {
		return c.ContainerKill(ctx, id, "KILL")
	})
	if cerrdefs.IsNotFound(killErr) {
		return nil
	}
	answer, inspectErr := e.Inspect(ctx, id)
	switch {
	case cerrdefs.IsNotFound(inspectErr), inspectErr == nil && !answer.State.Running:
		return nil
	case killErr != nil:
		return errors.Join(err, killErr)
	case inspectErr != nil:
		return inspectErr
	}
	return err
}

// Stop ends a container in order, within the time that it was made with; one that is gone is no error.
func (e *Engine) Stop(ctx context.Context, id string) error {
	err := e.Call(ctx, "stop container "+id, func(ctx context.Context, c *client.Client) error {
		return c.ContainerStop(ctx, id, container.StopOptions{})
	})
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// wholeSeconds rounds up; the engine multiplies what it gets.
func wholeSeconds(d time.Duration) int {
	whole := max(d, 0) / time.Second
	if d > whole*time.Second {
		whole++
	}
	return int(min(whole, math.MaxInt32))
}

// remove deletes a container as engine.Client.Remove does.
func (e *Engine) remove(ctx context.Context, id string) error {
	gone, err := e.Remove(ctx, id)
	if gone {
		e.cache.gone(id)
	} else {
		e.cache.drop(id)
	}
	return err
}

// failed makes an ApplyError, unless err is nil or one already.
func failed(reason string, err error) error {
	var apply *engine.ApplyError
	if err == nil || errors.As(err, &apply) {
		return err
	}
	root := err
	for next := errors.Unwrap(root); next != nil && strings.HasPrefix(root.Error(), "cannot "); next = errors.Unwrap(root) {
		root = next
	}
	return &engine.ApplyError{Reason: reason, Message: root.Error(), Err: err}
}

// deniedOOM knows the ways in which runc says that it may not lower oom_score_adj. The first is all that old runcs tell, and they
// tell it of other faults too, so that only a start that succeeds with a higher score proves it.
func deniedOOM(err error) bool {
	text := err.Error()
	return strings.Contains(text, "can't get final child's PID from pipe: EOF") ||
		strings.Contains(text, "oom_score_adj") && strings.Contains(text, "permission denied")
}
