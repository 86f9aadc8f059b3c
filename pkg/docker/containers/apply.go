package containers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/docker/accounts"
	"github.com/winkube/winkube/pkg/docker/convert"
	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/docker/identity"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// Applier carries out the steps of a plan on the engine.
type Applier struct {
	engine *engine.Client
	node   identity.Node
	cfg    Config
	images Images
	logs   Logs
	cache  *cache
	specs  *registrySpecs

	minOOM  atomic.Int64 // the lowest oom_score_adj known to be allowed by the host
	warnOOM sync.Once
}

// Apply carries out one step. Errors of the engine are of type *engine.ApplyError.
func (a *Applier) Apply(ctx context.Context, p *v1.Pod, step pod.Step) error {
	switch step.Action {
	case pod.CreateSandbox:
		err := failed(engine.ReasonSandbox, a.createSandbox(ctx, p, step))
		var apply *engine.ApplyError
		if errors.As(err, &apply) { // users see one failure, whichever part failed
			return &engine.ApplyError{Reason: engine.ReasonSandbox, Message: apply.Message, Err: apply.Err}
		}
		return err
	case pod.StartContainer:
		return a.startContainer(ctx, p, step)
	case pod.StopSandbox:
		return failed(engine.ReasonKill, a.stopSandbox(ctx, step.ID))
	case pod.StopContainer:
		return failed(engine.ReasonKill, a.stop(ctx, step.ID, step.Grace))
	case pod.UpdateContainer:
		return a.update(ctx, step)
	case pod.RemoveSandbox, pod.RemoveContainer:
		err := a.remove(ctx, step.ID)
		if err == nil {
			a.logs.Unlink(p, step.ID)
		}
		return failed(engine.ReasonRemove, err)
	}
	return fmt.Errorf("step %q: must be one of pod's Actions", step.Action)
}

// Target collects the facts about this engine that package convert needs.
func (a *Applier) Target(ctx context.Context) (convert.Target, error) {
	t := convert.Target{
		Platform: a.cfg.Platform, Node: string(a.node), Boot: a.cfg.Boot, HostCPUs: a.cfg.CPUs, HyperV: a.engine.HyperV(), LogMaxSize: a.cfg.LogMaxSize, LogMaxFiles: a.cfg.LogMaxFiles,
		CgroupParent: a.cfg.CgroupParent, MinOOMScoreAdj: int(a.minOOM.Load()), SeccompDefault: a.cfg.SeccompDefault,
	}
	if info, known := a.engine.LastInfo(); known {
		t.CPUs = info.CPUs
	}
	err := a.engine.Call(ctx, "connect to the engine", func(_ context.Context, c *client.Client) error {
		t.API = c.ClientVersion()
		return nil
	})
	if err == nil && t.CPUs == 0 {
		var info engine.Info
		info, err = a.engine.Info(ctx)
		t.CPUs = info.CPUs
	}
	return t, err
}

func (a *Applier) createSandbox(ctx context.Context, p *v1.Pod, step pod.Step) error {
	t, err := a.Target(ctx)
	if err != nil {
		return err
	}
	if step.Sandbox == nil {
		return errors.New("cannot create a sandbox: step has no Sandbox")
	}
	if err := a.checkRuntime(ctx, step.Sandbox.Runtime); err != nil {
		return err
	}
	if err = a.setHostAddresses(&t, p); err != nil {
		return failed(engine.ReasonCreate, err)
	}
	return a.createAndStart(ctx, p, t, func(t convert.Target) (convert.Creation, error) {
		return convert.Sandbox(p, step, a.cfg.Infra, t)
	})
}

func (a *Applier) startContainer(ctx context.Context, p *v1.Pod, step pod.Step) error {
	t, err := a.Target(ctx)
	if err != nil {
		return failed(engine.ReasonCreate, err)
	}
	c := convert.Find(p, step)
	if c == nil || step.Inputs == nil {
		return failed(engine.ReasonConfig, fmt.Errorf("cannot start %s container %q: the pod has none of that name, or step has no Inputs", step.Kind, step.Container))
	}
	if a.cfg.Hash != nil {
		t.Hash = a.cfg.Hash(c)
	}
	if name := convert.LocalhostProfile(p, c); name != "" && t.Platform.OS == "linux" {
		if !filepath.IsLocal(name) {
			return failed(engine.ReasonConfig, fmt.Errorf("container %s: localhostProfile %q: must be a path below the seccomp directory", c.Name, name))
		}
		data, err := os.ReadFile(filepath.Join(a.cfg.SeccompRoot, name))
		if err != nil {
			return failed(engine.ReasonConfig, fmt.Errorf("cannot read seccomp profile of container %s: %w", c.Name, err))
		}
		t.SeccompProfile = string(data)
	}
	if t.Accounts, err = a.accountsFor(ctx, p, c, step.Inputs.Image); err != nil {
		return failed(engine.ReasonCreate, err)
	}
	if err = a.setHostAddresses(&t, p); err != nil {
		return failed(engine.ReasonCreate, err)
	}
	return a.createAndStart(ctx, p, t, func(t convert.Target) (convert.Creation, error) { return convert.Container(p, step, t) })
}

// setHostAddresses adds to t the host addresses that package convert needs for the hostPorts of p, if it has any.
func (a *Applier) setHostAddresses(t *convert.Target, p *v1.Pod) error {
	ports, err := convert.HostPorts(p)
	if err != nil || len(ports) == 0 {
		return nil //nolint:nilerr // package convert reports a mistake in them
	}
	for _, from := range []struct {
		list func() ([]netip.Addr, error)
		to   *[]netip.Addr
	}{{a.cfg.HostAddresses, &t.HostAddresses}, {a.cfg.HostIPs, &t.HostIPs}} {
		if from.list == nil {
			continue
		}
		if *from.to, err = from.list(); err != nil {
			return err
		}
	}
	return nil
}

// createAndStart creates and starts a container. If the host refuses its OOM score, the container is recreated with score 0, and so are all later
// ones.
func (a *Applier) createAndStart(ctx context.Context, p *v1.Pod, t convert.Target, request func(convert.Target) (convert.Creation, error)) error {
	creation, err := request(t)
	if err != nil {
		return failed(engine.ReasonConfig, err)
	}
	id, done, err := a.create(ctx, p, creation)
	if err == nil {
		a.logs.Link(p, creation.Config.Labels, id)
	}
	if err != nil || done {
		return failed(engine.ReasonCreate, err)
	}
	err = a.specs.during(creation.Name, creation.CredentialSpec, func() error { return a.start(ctx, id, creation.Name) })
	if err == nil || creation.HostConfig.OomScoreAdj >= 0 || !deniedOOM(err) {
		return failed(engine.ReasonRun, err)
	}
	t.MinOOMScoreAdj = 0
	if creation, err = request(t); err != nil {
		return failed(engine.ReasonConfig, err)
	}
	if id, done, err = a.create(ctx, p, creation); err != nil || done {
		return failed(engine.ReasonCreate, err)
	}
	a.logs.Link(p, creation.Config.Labels, id)
	if err = a.start(ctx, id, creation.Name); err == nil {
		a.minOOM.Store(0)
		a.warnOOM.Do(func() {
			klog.InfoS("Warning: this host does not allow containers an OOM score below 0 (the engine lacks CAP_SYS_RESOURCE); "+
				"under memory pressure the kernel ignores their QoS class", "host", a.engine.Host())
		})
	}
	return failed(engine.ReasonRun, err)
}

// create creates a container that is ready to start. done means that a container of this attempt has already run. A leftover that never started is
// replaced.
func (a *Applier) create(ctx context.Context, p *v1.Pod, creation convert.Creation) (id string, done bool, err error) {
	what := "create container " + creation.Name
	for range 3 {
		id, err = a.engine.Create(ctx, what, creation.Name, creation.Config, creation.HostConfig)
		switch {
		case err == nil:
			a.cache.made(p.UID, id, a.fresh(id, creation))
			return id, false, a.copyIn(ctx, id, creation.Files)
		case cerrdefs.IsNotFound(err) && creation.Config.Labels[identity.LabelType] == identity.TypeSandbox && creation.Config.Image == a.cfg.Infra:
			if _, _, pullErr := a.images.Pull(ctx, a.cfg.Infra, nil); pullErr != nil {
				return "", false, fmt.Errorf("cannot get the image of the sandbox: %w", pullErr)
			}
			continue
		case !engine.NameTaken(err):
			return "", false, err
		}
		holder, inspectErr := a.engine.Inspect(ctx, creation.Name)
		switch {
		case cerrdefs.IsNotFound(inspectErr): // just removed; some engines also leak the name, see below
			continue
		case inspectErr != nil:
			return "", false, inspectErr
		}
		if o, problem := a.node.Own([]string{holder.Name}, holder.Config.Labels); problem != nil || o.UID != p.UID {
			return "", false, fmt.Errorf("cannot %s: container %s, which this kubelet did not create, has that name; remove it: %w", what, engine.ShortID(holder.ID), err)
		}
		if holder.State.Status != container.StateCreated {
			return holder.ID, true, nil
		}
		if err := a.remove(ctx, holder.ID); err != nil && !engine.StillRuns(err) {
			return "", false, err
		}
	}
	if engine.NameTaken(err) { // no visible container has the name: an engine bug that only an engine restart fixes
		creation.Name = fmt.Sprintf("%s_%x", creation.Name, a.engine.Clock().Now().UnixNano())
		if id, err = a.engine.Create(ctx, what, creation.Name, creation.Config, creation.HostConfig); err == nil {
			a.cache.made(p.UID, id, a.fresh(id, creation))
			err = a.copyIn(ctx, id, creation.Files)
		}
	}
	return id, false, err
}

// fresh is the result that an inspection would give for a container that was just created.
func (a *Applier) fresh(id string, c convert.Creation) seen {
	return view(container.InspectResponse{
		ContainerJSONBase: &container.ContainerJSONBase{
			ID: id, Created: a.engine.Clock().Now().UTC().Format(time.RFC3339Nano), State: &container.State{Status: container.StateCreated}, HostConfig: c.HostConfig,
		},
		Config: c.Config,
	}, a.cfg.Boot)
}

func (a *Applier) start(ctx context.Context, id, name string) error {
	a.cache.starting(id)
	err := a.engine.Call(ctx, "start container "+name, func(ctx context.Context, c *client.Client) error {
		return c.ContainerStart(ctx, id, container.StartOptions{})
	})
	if err != nil {
		a.cache.drop(id)
		a.engine.Doubt() // its runtime may be missing
		return err
	}
	a.cache.started(id)
	return nil
}

// stopSandbox kills the sandbox, whose program has nothing to end in order. A stop without a grace period would signal it twice, and for each signal
// an engine on Linux runs the runtime.
func (a *Applier) stopSandbox(ctx context.Context, id string) error {
	if a.cfg.Platform.OS == "linux" {
		if err := a.kill(ctx, id); err == nil {
			a.cache.drop(id)
			return nil
		}
	}
	return a.stop(ctx, id, 0) // it may be gone, not running, or paused
}

// kill sends a container the signal KILL. The engine answers when it has ended.
func (a *Applier) kill(ctx context.Context, id string) error {
	return a.engine.CallWithin(ctx, a.cfg.StopSlack, "kill container "+engine.ShortID(id), func(ctx context.Context, c *client.Client) error {
		return c.ContainerKill(ctx, id, "KILL")
	})
}

// stop stops a container: its stop signal, grace (rounded up to seconds), then kill. If the engine exceeds the grace period plus Config.StopSlack,
// stop sends it a kill request.
func (a *Applier) stop(ctx context.Context, id string, grace time.Duration) error {
	defer a.cache.drop(id)
	seconds := wholeSeconds(grace)
	what := "stop container " + engine.ShortID(id)
	err := a.engine.CallWithin(ctx, podspec.Seconds(int64(seconds))+a.cfg.StopSlack, what, func(ctx context.Context, c *client.Client) error {
		return c.ContainerStop(ctx, id, container.StopOptions{Timeout: &seconds})
	})
	if err == nil || cerrdefs.IsNotFound(err) {
		return nil
	}
	if ctx.Err() != nil {
		return err
	}
	klog.V(2).InfoS("Killing a container that the engine could not stop", "container", engine.ShortID(id), "reason", err)
	killErr := a.kill(ctx, id)
	if cerrdefs.IsNotFound(killErr) {
		return nil
	}
	answer, inspectErr := a.engine.Inspect(ctx, id)
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

// Stop sends a container its stop signal, and kills it after its configured stop timeout (or the engine's default). A missing container is not an
// error.
func (a *Applier) Stop(ctx context.Context, id string) error {
	err := a.engine.Call(ctx, "stop container "+id, func(ctx context.Context, c *client.Client) error {
		return c.ContainerStop(ctx, id, container.StopOptions{})
	})
	if cerrdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// wholeSeconds rounds up. The engine multiplies the result, so it must stay small.
func wholeSeconds(d time.Duration) int {
	whole := max(d, 0) / time.Second
	if d > whole*time.Second {
		whole++
	}
	return int(min(whole, math.MaxInt32))
}

// remove deletes a container as engine.Client.Remove does, and updates the cache.
func (a *Applier) remove(ctx context.Context, id string) error {
	gone, err := a.engine.Remove(ctx, id)
	if gone {
		a.cache.gone(id)
	} else {
		a.cache.drop(id)
	}
	return err
}

// failed wraps err in an ApplyError, unless it is nil or already one.
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

// deniedOOM recognizes the errors of runc and crun for a forbidden decrease of oom_score_adj. Old versions of runc report only the first one, and also
// for other faults: only a successful start with a higher score proves the cause.
func deniedOOM(err error) bool {
	text := strings.ToLower(err.Error())
	return strings.Contains(text, "can't get final child's pid from pipe: eof") ||
		strings.Contains(text, "oom_score_adj") && strings.Contains(text, "permission denied")
}

// accountsFor returns the accounts of the image for a container that is about to be created. If only the status needs them, a failure must not
// prevent the start: they are nil then.
func (a *Applier) accountsFor(ctx context.Context, p *v1.Pod, c *v1.Container, image pod.Image) (*accounts.Accounts, error) {
	if a.cfg.Platform.OS == "windows" {
		return nil, nil
	}
	known, err := a.images.Accounts(ctx, image.ID)
	if err != nil && ctx.Err() == nil && !convert.NeedsAccounts(p, c, image.User) {
		if cerrdefs.IsNotFound(err) { // the create request that follows reports it
			return nil, nil
		}
		klog.ErrorS(err, "Cannot read the users of an image; the container's status will not show its user", "pod", klog.KObj(p), "container", c.Name)
		return nil, nil
	}
	return known, err
}

// checkRuntime checks that the engine has the runtime named by the handler of a RuntimeClass. On Windows the handler names an isolation, which
// package pod has already checked.
func (a *Applier) checkRuntime(ctx context.Context, handler string) error {
	if handler == "" || a.cfg.Platform.OS == "windows" {
		return nil
	}
	info, err := a.engine.Current(ctx)
	if err != nil {
		return err
	}
	if slices.Contains(info.Runtimes, handler) {
		return nil
	}
	return fmt.Errorf("no runtime for RuntimeClass handler %q is configured: the engine has %s; add it to runtimes in the engine's daemon.json",
		handler, strings.Join(info.Runtimes, ", "))
}
