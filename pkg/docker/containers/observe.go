package containers

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/docker/convert"
	"github.com/winkube/winkube/pkg/docker/engine"
	"github.com/winkube/winkube/pkg/docker/identity"
	"github.com/winkube/winkube/pkg/pod"
)

// seen is one container of the engine as pods see it: exactly one of sandbox and container is set.
type seen struct {
	namespace, name string // of the pod
	grace           int64  // of the pod, in seconds

	sandbox   *pod.Sandbox
	container *pod.Container
	commands  []string // ids of the commands that run in it
	unclear   bool     // the engine did not describe it in time
}

// glimpsePatience is how long ObserveAll waits for the inspection of one container. A container whose shim hangs, for example, does not answer.
const glimpsePatience = 10 * time.Second

// Observer reports the state of this node's pods on the engine.
type Observer struct {
	engine      *engine.Client
	node        identity.Node
	boot        string // Config.Boot
	os          string // of the containers
	inspections int    // how many containers ObserveAll inspects in parallel
	images      Images
	logs        Logs
	commands    Commands
	cache       *cache
	specs       *registrySpecs

	begun        atomic.Bool // ObserveAll has succeeded once: commands of earlier agents are being killed
	sweptHolders atomic.Bool // SweepHolders has succeeded once
	strangers    strangers
}

// ObserveAll returns every pod that has a container on the engine. It costs one list, and an inspection of each uncached container. It
// also removes the links to logs of containers that are gone. The first call also removes what a killed agent left: credential specs, holders of
// images.
func (ob *Observer) ObserveAll(ctx context.Context) (map[types.UID]pod.Observed, error) {
	all, err := ob.observeAll(ctx)
	if ob.node.Bystander() {
		return all, err
	}
	if ob.cache.lost() {
		ob.logs.Sweep()
	}
	ob.specs.sweep()
	if err == nil && !ob.sweptHolders.Load() {
		err = ob.images.SweepHolders(ctx)
		ob.sweptHolders.Store(err == nil)
	}
	return all, err
}

// Observe returns one pod. While events arrive, it inspects only containers that events or our own calls have touched since the last call.
func (ob *Observer) Observe(ctx context.Context, uid types.UID) (pod.Observed, error) {
	list, ok := ob.cache.of(uid)
	if !ok {
		all, err := ob.list(ctx, uid)
		if err != nil {
			return pod.Observed{}, err
		}
		for i := range all {
			if o, err := ob.node.Own(all[i].Names, all[i].Labels); err == nil && o.UID == uid {
				list = append(list, all[i])
			}
		}
	}
	found, err := ob.lookAll(ctx, list, slices.Repeat([]types.UID{uid}, len(list)), false)
	if err != nil {
		return pod.Observed{}, err
	}
	var out pod.Observed
	for _, s := range found {
		out = join(out, uid, s)
	}
	newestFirst(out)
	return out, nil
}

// list lists this node's containers: those of one pod, or all if uid is "".
func (ob *Observer) list(ctx context.Context, uid types.UID) (list []container.Summary, err error) {
	err = ob.engine.Call(ctx, "list containers", func(ctx context.Context, c *client.Client) (err error) {
		list, err = c.ContainerList(ctx, container.ListOptions{All: true, Filters: ob.node.Filter(uid)})
		return err
	})
	return list, err
}

// listAll lists this node's containers and the pod of each; "": it is another's.
func (ob *Observer) listAll(ctx context.Context) (list []container.Summary, owners []types.UID, err error) {
	mark := ob.cache.mark()
	list, err = ob.list(ctx, "")
	if err != nil {
		return nil, nil, err
	}
	exist, owners, strangers := map[string]types.UID{}, make([]types.UID, len(list)), map[string]error{}
	for i := range list {
		o, err := ob.node.Own(list[i].Names, list[i].Labels)
		switch {
		case err == nil:
			exist[list[i].ID], owners[i] = o.UID, o.UID
		case !errors.Is(err, identity.ErrForeign):
			strangers[list[i].ID] = err
		}
	}
	ob.strangers.log(strangers)
	ob.cache.listed(exist, mark)
	return list, owners, nil
}

// Existing returns which of ids are containers of this node's pods, and perhaps others. It costs nothing while all are known to exist, and otherwise one
// list.
func (ob *Observer) Existing(ctx context.Context, ids []string) (map[string]bool, error) {
	if !ob.cache.knows(ids) {
		list, owners, err := ob.listAll(ctx)
		if err != nil {
			return nil, err
		}
		ids = nil
		for i := range list {
			if owners[i] != "" {
				ids = append(ids, list[i].ID)
			}
		}
	}
	existing := map[string]bool{}
	for _, id := range ids {
		existing[id] = true
	}
	return existing, nil
}

func (ob *Observer) observeAll(ctx context.Context) (map[types.UID]pod.Observed, error) {
	list, owners, err := ob.listAll(ctx)
	if err != nil {
		return nil, err
	}
	found, err := ob.lookAll(ctx, list, owners, true)
	if err != nil {
		return nil, err
	}
	if !ob.node.Bystander() && !ob.begun.Swap(true) {
		ob.endFormer(ctx, list, found)
	}
	out := map[types.UID]pod.Observed{}
	for i, s := range found {
		if uid := owners[i]; uid != "" {
			out[uid] = join(out[uid], uid, s)
		}
	}
	for uid, o := range out {
		newestFirst(o)
		out[uid] = o
	}
	return out, nil
}

// lookAll inspects each container of a list, in the cache or on the engine. Entries whose owner is "" stay empty. With glimpses, a container that the
// engine does not describe in time gets only what the list says.
func (ob *Observer) lookAll(ctx context.Context, list []container.Summary, owners []types.UID, glimpses bool) ([]seen, error) {
	limit := ob.engine.Timeout()
	if glimpses {
		limit = min(limit, glimpsePatience)
	}
	found := make([]seen, len(list))
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(ob.inspections)
	for i, summary := range list {
		uid := owners[i]
		if uid == "" {
			continue
		}
		known, version, ok := ob.cache.get(uid, summary.ID, summary.State)
		if ok {
			found[i] = known
			continue
		}
		group.Go(func() (err error) {
			found[i], err = ob.look(inner, uid, summary.ID, version, limit)
			if silent := new(engine.NoAnswer); glimpses && errors.As(err, silent) {
				found[i], err = glimpse(summary), nil
			}
			return err
		})
	}
	return found, group.Wait()
}

// endFormer kills the commands of probes and hooks that previous agents left in running containers.
func (ob *Observer) endFormer(ctx context.Context, list []container.Summary, found []seen) {
	containers := map[string]string{}
	for i := range list {
		for _, id := range found[i].commands {
			containers[id] = list[i].ID
		}
	}
	if len(containers) > 0 {
		go ob.commands.EndCommands(ctx, containers, make(chan bool, 1)) // not awaited: it ends by itself, or with ctx; hooks are run again
	}
}

// look inspects one container of the pod uid. The result is empty if the container has vanished or is not the pod's.
func (ob *Observer) look(ctx context.Context, uid types.UID, id string, version uint64, limit time.Duration) (seen, error) {
	answer, err := ob.engine.InspectWithin(ctx, limit, id)
	if cerrdefs.IsNotFound(err) {
		ob.cache.gone(id)
		return seen{}, nil
	}
	if err != nil {
		return seen{}, err
	}
	if o, problem := ob.node.Own([]string{answer.Name}, answer.Config.Labels); problem != nil || o.UID != uid {
		ob.cache.gone(id)
		return seen{}, nil
	}
	s := view(answer, ob.boot)
	s.commands = answer.ExecIDs
	if c := s.container; c != nil && c.State == pod.Exited {
		c.Message = ob.terminationMessage(ctx, answer)
	}
	// A failed start changes a created container without an event.
	if state := answer.State.Status; state != container.StateCreated {
		ob.cache.put(id, string(state), s, version, state == container.StateExited || state == container.StateDead)
	}
	return s, nil
}

// glimpse describes a container from its list entry alone. It is pure.
func glimpse(summary container.Summary) seen {
	in := container.InspectResponse{
		ContainerJSONBase: &container.ContainerJSONBase{
			ID: summary.ID, Image: summary.ImageID, Created: time.Unix(summary.Created, 0).UTC().Format(time.RFC3339Nano),
			State: &container.State{Status: summary.State, Running: summary.State == container.StateRunning},
		},
		Config: &container.Config{Labels: summary.Labels},
	}
	s := view(in, "")
	s.unclear = true
	return s
}

// join adds a container to its pod. The newest container's labels have the pod's names and grace period.
func join(o pod.Observed, uid types.UID, s seen) pod.Observed {
	if s.sandbox == nil && s.container == nil {
		return o
	}
	if o.UID == "" {
		o.UID, o.Namespace, o.Name, o.Grace = uid, s.namespace, s.name, s.grace
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

// view converts the answer of an inspection; boot is the ID of the host's current boot. It is pure.
func view(in container.InspectResponse, boot string) seen {
	labels := in.Config.Labels
	created, addresses := stamp(in.Created), engine.Addresses(in)
	s := seen{namespace: labels[identity.LabelPodNamespace], name: labels[identity.LabelPodName]}
	s.grace, _ = strconv.ParseInt(labels[identity.LabelGrace], 10, 64)
	if labels[identity.LabelType] == identity.TypeSandbox {
		s.sandbox = &pod.Sandbox{
			ID: in.ID, Attempt: identity.Number(labels, identity.LabelRestartCount), Running: in.State.Running,
			Unstarted: in.State.Status == container.StateCreated, CreatedAt: created, Addresses: addresses, Runtime: labels[identity.LabelRuntime],
			Network: networkOf(in), HostPorts: convert.Unpublished(in),
		}
		if in.State.Running {
			s.sandbox.PID = in.State.Pid
		}
		return s
	}
	c := &pod.Container{
		ID: in.ID, Name: labels[identity.LabelContainerName], Kind: identity.Kind(labels), Attempt: identity.Number(labels, identity.LabelRestartCount),
		SandboxID: labels[identity.LabelSandboxID], Hash: labels[identity.LabelHash], CreatedAt: created,
		Image: labels[identity.LabelImage], ImageID: labels[identity.LabelImageRef], Addresses: addresses,
		User: identity.ParseUser(labels[identity.LabelUser]), StopSignal: in.Config.StopSignal, RecursiveReadOnly: labels[identity.LabelRecursive] == "true",
		Network: networkOf(in), HostPorts: convert.Unpublished(in), EarlierBoot: boot != "" && labels[identity.LabelBoot] != "" && labels[identity.LabelBoot] != boot,
	}
	if c.ImageID == "" {
		c.ImageID = identity.ImageIDPrefix + in.Image
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
		if c.StartedAt.IsZero() { // it could not be started; its end must not be the zero time
			c.StartedAt = created
		}
		if c.FinishedAt.Before(c.StartedAt) {
			c.FinishedAt = c.StartedAt
		}
	}
	s.container = c
	return s
}

// stamp parses a time of the engine, which writes the year 1 for "never".
func stamp(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || t.Year() <= 1 {
		return time.Time{}
	}
	return t
}

// networkOf is the engine network that a container was created on.
func networkOf(in container.InspectResponse) string {
	if in.HostConfig == nil {
		return ""
	}
	return string(in.HostConfig.NetworkMode)
}

// Limits of the termination message (v1.Container.TerminationMessagePolicy).
const (
	maxMessage      = 4096 // bytes
	maxMessageLines = 80   // of the log
	maxMessageLog   = 2048 // bytes of the log
)

// terminationMessage reads the container's message file. If that is empty and the policy allows it, it reads the end of a failed container's log.
func (ob *Observer) terminationMessage(ctx context.Context, in container.InspectResponse) string {
	labels := in.Config.Labels
	text := readHead(labels[identity.LabelMessageRoot], labels[identity.LabelMessage], maxMessage)
	if labels[identity.LabelMessage] == "" && ob.os == "windows" {
		text = ob.copyOut(ctx, in.ID, labels[identity.LabelMessagePath])
	}
	if text != "" {
		return text
	}
	if labels[identity.LabelMessagePolicy] != string(v1.TerminationMessageFallbackToLogsOnError) || in.State.ExitCode == 0 {
		return ""
	}
	lines := int64(maxMessageLines)
	tail := &tail{limit: maxMessageLog}
	bounded, _, cancel := ob.engine.Within(ctx, ob.engine.Timeout())
	defer cancel()
	if err := ob.logs.Read(bounded, in, &v1.PodLogOptions{TailLines: &lines}, tail, tail); err != nil {
		return "cannot read the log of the failed container: " + err.Error()
	}
	return tail.String()
}
