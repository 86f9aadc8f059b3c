package docker

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
)

// seen is one container of the engine as pods know it: exactly one of the first two is set.
type seen struct {
	sandbox   *pod.Sandbox
	container *pod.Container
	commands  []string // ids of what is executed in it
	unclear   bool     // the engine did not tell
}

// glimpsePatience is how long ObserveAll waits for what the engine says of one container. An engine that is stuck with one, for example
// because its shim does not answer, does not answer for that one.
const glimpsePatience = 10 * time.Second

// ObserveAll returns every pod of which the engine has anything: one list, and an inspect for each container that is not known yet.
func (e *Engine) ObserveAll(ctx context.Context) (map[types.UID]pod.Observed, error) {
	e.sweepLogs() // before anything starts: a link made for a start leads nowhere for a moment
	all, err := e.observe(ctx, "")
	if err == nil && !e.sweptHolders.Load() {
		err = e.sweepHolders(ctx)
		e.sweptHolders.Store(err == nil)
	}
	return all, err
}

// Observe returns one pod. The list is filtered by the engine, so that the cost does not grow with other pods.
func (e *Engine) Observe(ctx context.Context, uid types.UID) (pod.Observed, error) {
	all, err := e.observe(ctx, uid)
	if err != nil {
		return pod.Observed{}, err
	}
	return all[uid], nil
}

func (e *Engine) observe(ctx context.Context, uid types.UID) (map[types.UID]pod.Observed, error) {
	var list []container.Summary
	err := e.call(ctx, e.cfg.CallTimeout, "list containers", func(ctx context.Context, c *client.Client) (err error) {
		list, err = c.ContainerList(ctx, container.ListOptions{All: true, Filters: e.ours(uid)})
		return err
	})
	if err != nil {
		return nil, err
	}
	found := make([]seen, len(list))
	exists := map[string]bool{}
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(e.observers)
	for i := range list {
		exists[list[i].ID] = true
		known, mark, ok := e.cache.get(list[i].ID, list[i].State)
		if ok {
			found[i] = known
			continue
		}
		group.Go(func() (err error) {
			limit := e.cfg.CallTimeout
			if uid == "" {
				limit = min(limit, glimpsePatience)
			}
			found[i], err = e.look(inner, list[i], mark, limit)
			if silent := new(silence); uid == "" && errors.As(err, silent) {
				found[i], err = glimpse(list[i]), nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if uid == "" {
		e.cache.retain(exists)
		if !e.begun.Swap(true) {
			e.endFormer(ctx, list, found)
		}
	}
	out := map[types.UID]pod.Observed{}
	for i := range list {
		if owner, ok := e.owner(list[i].Labels); ok {
			out[owner] = join(out[owner], owner, list[i].Labels, found[i])
		}
	}
	for uid, o := range out {
		newestFirst(o)
		out[uid] = o
	}
	return out, nil
}

// endFormer has the commands of probes and hooks ended that agents before this one have left in running containers.
func (e *Engine) endFormer(ctx context.Context, list []container.Summary, found []seen) {
	containers := map[string]string{}
	for i := range list {
		for _, id := range found[i].commands {
			containers[id] = list[i].ID
		}
	}
	if len(containers) > 0 {
		go e.endCommands(ctx, containers, make(chan bool, 1)) // hooks are run again
	}
}

// look inspects one container of a list. One that vanished since is nothing.
func (e *Engine) look(ctx context.Context, summary container.Summary, mark uint64, limit time.Duration) (seen, error) {
	answer, err := e.inspectWithin(ctx, limit, summary.ID)
	if gone(err) {
		return seen{}, nil
	}
	if err != nil {
		return seen{}, err
	}
	s := view(answer)
	s.commands = answer.ExecIDs
	settled := answer.State.Status == container.StateExited || answer.State.Status == container.StateDead
	if c := s.container; c != nil && c.State == pod.Exited {
		c.Message = e.terminationMessage(ctx, answer)
	}
	// A start that fails moves a created container without an event.
	if answer.State.Status == summary.State && summary.State != container.StateCreated {
		e.cache.put(summary.ID, summary.State, s, mark, settled)
	}
	return s, nil
}

// glimpse is what a list alone tells of a container. It is pure.
func glimpse(summary container.Summary) seen {
	in := container.InspectResponse{
		ContainerJSONBase: &container.ContainerJSONBase{
			ID: summary.ID, Image: summary.ImageID, Created: time.Unix(summary.Created, 0).UTC().Format(time.RFC3339Nano),
			State: &container.State{Status: summary.State, Running: summary.State == container.StateRunning},
		},
		Config: &container.Config{Labels: summary.Labels},
	}
	s := view(in)
	s.unclear = true
	return s
}

// join adds what was seen to the pod it belongs to. The newest container's labels tell the pod's names and grace.
func join(o pod.Observed, uid types.UID, labels map[string]string, s seen) pod.Observed {
	if s.sandbox == nil && s.container == nil {
		return o
	}
	if o.UID == "" {
		o.UID, o.Namespace, o.Name = uid, labels[LabelPodNamespace], labels[LabelPodName]
		o.Grace, _ = strconv.ParseInt(labels[LabelGrace], 10, 64)
	}
	o.Unclear = o.Unclear || s.unclear
	if s.sandbox != nil {
		o.Sandboxes = append(o.Sandboxes, *s.sandbox)
	}
	if s.container != nil {
		o.Containers = append(o.Containers, *s.container)
	}
	return o
}

func newestFirst(o pod.Observed) {
	slices.SortFunc(o.Sandboxes, func(a, b pod.Sandbox) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(b.Attempt, a.Attempt), cmp.Compare(a.ID, b.ID))
	})
	slices.SortFunc(o.Containers, func(a, b pod.Container) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(b.Attempt, a.Attempt), cmp.Compare(a.ID, b.ID))
	})
}

// view reads an inspect answer. It is pure.
func view(in container.InspectResponse) seen {
	labels := in.Config.Labels
	created, addresses := stamp(in.Created), addressesOf(in)
	if labels[LabelType] == typeSandbox {
		return seen{sandbox: &pod.Sandbox{
			ID: in.ID, Attempt: number(labels, LabelRestartCount), Running: in.State.Running,
			Unstarted: in.State.Status == container.StateCreated, CreatedAt: created, Addresses: addresses, Runtime: labels[LabelRuntime],
		}}
	}
	c := &pod.Container{
		ID: in.ID, Name: labels[LabelContainerName], Kind: kindOf(labels), Attempt: number(labels, LabelRestartCount),
		SandboxID: labels[LabelSandboxID], Hash: labels[LabelHash], CreatedAt: created,
		Image: labels[LabelImage], ImageID: labels[LabelImageRef], Addresses: addresses,
		User: parseUser(labels[LabelUser]), StopSignal: in.Config.StopSignal, RecursiveReadOnly: labels[LabelRecursive] == "true",
	}
	if c.ImageID == "" {
		c.ImageID = imageIDPrefix + in.Image
	}
	switch state := in.State; {
	case state.Running: // also while paused or restarting
		c.State, c.StartedAt, c.HostPID = pod.Running, stamp(state.StartedAt), state.Pid
		c.Resources = resourcesOf(in)
	case state.Status == container.StateCreated && state.ExitCode == 0 && state.Error == "":
		c.State = pod.Created
	default:
		c.State, c.ExitCode, c.OOMKilled, c.Error = pod.Exited, state.ExitCode, state.OOMKilled, state.Error
		c.StartedAt, c.FinishedAt = stamp(state.StartedAt), stamp(state.FinishedAt)
		if c.StartedAt.IsZero() { // it could not be started; its end must not lie before all times
			c.StartedAt = created
		}
		if c.FinishedAt.Before(c.StartedAt) {
			c.FinishedAt = c.StartedAt
		}
	}
	return seen{container: c}
}

// stamp parses a time of the engine, which writes the year 1 for "never".
func stamp(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || t.Year() <= 1 {
		return time.Time{}
	}
	return t
}

// addressesOf lists the addresses of a container's own network, IPv4 first.
func addressesOf(in container.InspectResponse) []netip.Addr {
	if in.NetworkSettings == nil {
		return nil
	}
	var out []netip.Addr
	for _, endpoint := range in.NetworkSettings.Networks {
		if endpoint == nil {
			continue
		}
		for _, text := range []string{endpoint.IPAddress, endpoint.GlobalIPv6Address} {
			if addr, err := netip.ParseAddr(text); err == nil {
				out = append(out, addr)
			}
		}
	}
	slices.SortFunc(out, func(a, b netip.Addr) int {
		return cmp.Or(cmp.Compare(a.BitLen(), b.BitLen()), a.Compare(b))
	})
	return out
}

// Limits of the termination message (v1.Container.TerminationMessagePolicy).
const (
	maxMessage      = 4096 // bytes
	maxMessageLines = 80   // of the log
	maxMessageLog   = 2048 // bytes of the log
)

// terminationMessage reads what the container left behind: its message file, or when that is empty and the policy says so, the end of
// the log of a container that failed.
func (e *Engine) terminationMessage(ctx context.Context, in container.InspectResponse) string {
	labels := in.Config.Labels
	if text := readHead(labels[LabelMessage], maxMessage); text != "" {
		return text
	}
	if labels[LabelMessagePolicy] != string(v1.TerminationMessageFallbackToLogsOnError) || in.State.ExitCode == 0 {
		return ""
	}
	lines := int64(maxMessageLines)
	tail := &tail{limit: maxMessageLog}
	bounded, _, cancel := e.within(ctx, e.cfg.CallTimeout)
	defer cancel()
	if err := e.logs(bounded, in, &v1.PodLogOptions{TailLines: &lines}, tail, tail); err != nil {
		return "cannot read the log of the failed container: " + err.Error()
	}
	return tail.String()
}
