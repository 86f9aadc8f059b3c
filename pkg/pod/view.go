package pod

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/podspec"
)

// View is one pod as its worker last left it. Nothing in it may be changed.
type View struct {
	// Pod is the pod as desired, with the status that this agent has found, which the API server may not have yet.
	Pod        *v1.Pod
	MirrorUID  types.UID // of a static pod, once its mirror is there
	Phase      Phase
	Gone       bool // no source wants it any more
	Observed   Observed
	Operations []string // in flight, oldest first
	Decision   Decision // the last plan
	PodIPs     []netip.Addr
}

func (p Phase) String() string {
	return [...]string{"syncing", "terminating", "terminated"}[p]
}

// publish makes the worker's present state visible to others.
func (w *worker) publish() {
	pod := *w.pod
	pod.Status = w.know.Last
	view := &View{
		Pod: &pod, Phase: w.know.Phase, Gone: w.gone, Observed: w.observed, Decision: w.decision,
		PodIPs: PodAddresses(w.pod, w.observed, w.know.HostIPs),
	}
	if w.mirror != nil {
		view.MirrorUID = w.mirror.UID
	}
	for _, s := range w.busy() {
		view.Operations = append(view.Operations, strings.TrimSpace(string(s.Action)+" "+s.Container))
	}
	var chores []string
	for name, c := range w.chores {
		if c.running {
			chores = append(chores, name)
		}
	}
	slices.Sort(chores)
	view.Operations = append(view.Operations, chores...)
	w.view.Store(view)
}

// Snapshot returns all pods, by namespace and name. It never blocks on a pod.
func (m *Manager) Snapshot() []View {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var all []View
	for _, w := range m.workers {
		all = append(all, *w.view.Load())
	}
	slices.SortFunc(all, func(a, b View) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	return all
}

// ContainerRef is where a request for a container goes.
type ContainerRef struct {
	Pod *v1.Pod // with its current status; not to be changed
	// ID is the latest attempt that was started, running or not; "" when none was asked for.
	ID      string
	Running bool
	// Previous is the attempt before, for `kubectl logs --previous`; "" where there is none.
	Previous string
	// NetworkID is the running container that owns the pod's network: the sandbox, or where there is none the running container.
	NetworkID string
	PodIPs    []netip.Addr
}

// Lookup finds a pod by name and, unless uid is "", by UID: a static pod's own or its mirror's. container "" asks for the pod alone. The
// errors are the API's: NotFound for a pod or container that is not here, BadRequest for a container that has not started yet.
func (m *Manager) Lookup(namespace, name string, uid types.UID, container string) (ContainerRef, error) {
	view := m.find(namespace, name, uid)
	if view == nil {
		return ContainerRef{}, apierrors.NewNotFound(v1.Resource("pods"), name)
	}
	ref := ContainerRef{Pod: view.Pod, PodIPs: view.PodIPs}
	if box := newestSandbox(view.Observed); box != nil && box.Running {
		ref.NetworkID = box.ID
	} else if box == nil {
		for _, c := range view.Observed.Containers {
			if c.State == Running {
				ref.NetworkID = c.ID
			}
		}
	}
	if container == "" {
		return ref, nil
	}
	kind, spec, ok := podspec.FindContainer(view.Pod, container)
	if !ok {
		return ContainerRef{}, apierrors.NewNotFound(v1.Resource("containers"), container)
	}
	list := slices.DeleteFunc(attempts(view.Observed, nil, kind, spec), func(p past) bool { return p.remembered != nil })
	if len(list) == 0 {
		why := "ContainerCreating"
		if st := podspec.FindStatus(&view.Pod.Status, kind, container); st != nil && st.State.Waiting != nil {
			why = st.State.Waiting.Reason
		}
		return ContainerRef{}, apierrors.NewBadRequest(fmt.Sprintf("container %q in pod %q is waiting to start: %s", container, name, why))
	}
	ref.ID, ref.Running = list[0].ID, list[0].State == Running
	if len(list) > 1 {
		ref.Previous = list[1].ID
	}
	return ref, nil
}

// find prefers of several pods of one name that which lives.
func (m *Manager) find(namespace, name string, uid types.UID) *View {
	var found *View
	for _, v := range m.Snapshot() {
		if v.Pod.Namespace != namespace || v.Pod.Name != name || uid != "" && v.Pod.UID != uid && v.MirrorUID != uid {
			continue
		}
		if found == nil || v.Phase < found.Phase {
			found = &v
		}
	}
	return found
}

// DebugText prints all pods as aligned text: what each is about and what it waits for.
func (m *Manager) DebugText(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAMESPACE\tNAME\tUID\tPHASE\tSTATUS\tCONTAINERS\tIP\tIN FLIGHT\tWAITS FOR")
	for _, v := range m.Snapshot() {
		var containers, waits, ips []string
		for kind, c := range podspec.Containers(v.Pod) {
			if st := podspec.FindStatus(&v.Pod.Status, kind, c.Name); st != nil {
				containers = append(containers, c.Name+"="+stateWord(st))
			}
		}
		for _, wait := range v.Decision.Waits {
			waits = append(waits, cmp.Or(wait.Container, "sandbox")+": "+wait.Reason)
		}
		if !v.Decision.Next.IsZero() {
			waits = append(waits, v.Decision.Next.UTC().Format(time.TimeOnly))
		}
		for _, ip := range v.PodIPs {
			ips = append(ips, ip.String())
		}
		dash := func(list []string) string { return cmp.Or(strings.Join(list, ", "), "-") }
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", cmp.Or(v.Pod.Namespace, "-"), cmp.Or(v.Pod.Name, "-"), v.Pod.UID, v.Phase,
			cmp.Or(string(v.Pod.Status.Phase), "-"), dash(containers), dash(ips), dash(v.Operations), dash(waits))
	}
	w.Flush()
}

func stateWord(st *v1.ContainerStatus) string {
	word := "unknown"
	switch {
	case st.State.Running != nil && st.Ready:
		word = "ready"
	case st.State.Running != nil:
		word = "running"
	case st.State.Waiting != nil:
		word = st.State.Waiting.Reason
	case st.State.Terminated != nil:
		word = fmt.Sprintf("%s(%d)", st.State.Terminated.Reason, st.State.Terminated.ExitCode)
	}
	if st.RestartCount > 0 {
		word += fmt.Sprintf("/%d", st.RestartCount)
	}
	return word
}

// Ready is nil while the loop goes round; it says nothing about single pods.
func (m *Manager) Ready() error {
	beat := m.beat.Load()
	if beat == nil {
		return errors.New("pods are not managed yet: the engine has not told what it runs")
	}
	if age := m.parts.Clock.Since(*beat); age > 3*beatPeriod {
		return fmt.Errorf("pods have not been looked at for %s", age.Round(time.Second))
	}
	return nil
}
