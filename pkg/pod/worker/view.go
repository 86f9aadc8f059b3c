package worker

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// publish makes the worker's current state visible to others.
func (w *worker) publish() {
	p := *w.pod
	p.Status = w.seen.Memory.Last
	observed := w.seen.Observed()
	view := &pod.View{
		Pod: &p, Phase: w.phase(), Gone: w.remains.unwanted, Left: w.remains.directory, Observed: observed, Waits: w.decision.Waits, Next: w.decision.Next,
		PodIPs: pod.PodAddresses(w.pod, observed, w.seen.Node.HostIPs),
	}
	if w.mirror != nil {
		view.MirrorUID = w.mirror.UID
	}
	for _, step := range w.steps.list() {
		view.Operations = append(view.Operations, strings.TrimSpace(step.Verb()+" "+step.Of().Container))
	}
	view.Operations = append(view.Operations, w.jobs.names()...)
	w.view.Store(view)
}

// roster has the workers of all pods. Any goroutine may read it; only the Manager's loop changes it.
type roster struct {
	mu      sync.RWMutex
	workers map[types.UID]*worker
}

func newRoster() *roster { return &roster{workers: map[types.UID]*worker{}} }

// worker is the pod's worker, or nil. Only the Manager's loop calls it, and needs no lock to read.
func (r *roster) worker(uid types.UID) *worker { return r.workers[uid] }

func (r *roster) add(w *worker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.workers[w.uid] = w
}

func (r *roster) remove(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.workers, uid)
}

// Evict ends a pod. Any goroutine may call it, and it does not block. It ignores pods that are not here or already ending.
func (r *roster) Evict(uid types.UID, e pod.Eviction) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if w := r.workers[uid]; w != nil {
		w.inbox.put(func() { w.evict(e) })
	}
}

// Vacated returns a channel that is closed when nothing of the pod runs and its volumes are gone. If there is no such pod, the channel is
// already closed. Any goroutine may call it.
func (r *roster) Vacated(uid types.UID) <-chan struct{} {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if w := r.workers[uid]; w != nil {
		return w.vacated
	}
	none := make(chan struct{})
	close(none)
	return none
}

// RemoveLeftovers removes the exited containers of pods that have ended. Any goroutine may call it, and it does not block.
func (r *roster) RemoveLeftovers() {
	r.mu.RLock()
	defer r.mu.RUnlock()
	for _, w := range r.workers {
		w.inbox.put(w.removeLeftovers)
	}
}

// Snapshot returns all pods, sorted by namespace and name. It never waits for a pod.
func (r *roster) Snapshot() []pod.View {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var all []pod.View
	for _, w := range r.workers {
		all = append(all, *w.view.Load())
	}
	slices.SortFunc(all, func(a, b pod.View) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.Pod.UID, b.Pod.UID))
	})
	return all
}

// Lookup finds a pod by name and, unless uid is "", by UID: a static pod's own or its mirror pod's. With container "", it finds only the
// pod. The errors are the API's: NotFound for a pod or container that is not here, BadRequest for a container that has not started yet.
func (r *roster) Lookup(namespace, name string, uid types.UID, container string) (pod.ContainerRef, error) {
	view := r.find(namespace, name, uid)
	if view == nil {
		return pod.ContainerRef{}, apierrors.NewNotFound(v1.Resource("pods"), name)
	}
	ref := pod.ContainerRef{Pod: view.Pod, PodIPs: view.PodIPs}
	if box := view.Observed.NewestSandbox(); box != nil && box.Running {
		ref.NetworkID = box.ID
	} else if box == nil {
		for _, c := range view.Observed.Containers {
			if c.State == pod.Running {
				ref.NetworkID = c.ID
			}
		}
	}
	if container == "" {
		return ref, nil
	}
	kind, _, ok := podspec.FindContainer(view.Pod, container)
	if !ok {
		return pod.ContainerRef{}, apierrors.NewNotFound(v1.Resource("containers"), container)
	}
	list := view.Observed.Attempts(container)
	if len(list) == 0 {
		why := "ContainerCreating"
		if st := podspec.FindStatus(&view.Pod.Status, kind, container); st != nil && st.State.Waiting != nil {
			why = st.State.Waiting.Reason
		}
		return pod.ContainerRef{}, apierrors.NewBadRequest(fmt.Sprintf("container %q in pod %q is waiting to start: %s", container, name, why))
	}
	ref.ID, ref.Running = list[0].ID, list[0].State == pod.Running
	if len(list) > 1 {
		ref.Previous = list[1].ID
	}
	return ref, nil
}

// find prefers a live pod if several have the same name.
func (r *roster) find(namespace, name string, uid types.UID) *pod.View {
	var found *pod.View
	for _, v := range r.Snapshot() {
		if v.Pod.Namespace != namespace || v.Pod.Name != name || uid != "" && v.Pod.UID != uid && v.MirrorUID != uid {
			continue
		}
		if found == nil || v.Phase < found.Phase {
			found = &v
		}
	}
	return found
}

// DebugText prints all pods as aligned text: what each is doing and waiting for.
func (r *roster) DebugText(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAMESPACE\tNAME\tUID\tPHASE\tSTATUS\tCONTAINERS\tIP\tIN FLIGHT\tWAITS FOR")
	for _, v := range r.Snapshot() {
		var containers, waits, ips []string
		for kind, c := range podspec.Containers(v.Pod) {
			if st := podspec.FindStatus(&v.Pod.Status, kind, c.Name); st != nil {
				containers = append(containers, c.Name+"="+stateWord(st))
			}
		}
		for _, wait := range v.Waits {
			waits = append(waits, cmp.Or(wait.Container, "sandbox")+": "+wait.Reason)
		}
		if !v.Next.IsZero() {
			waits = append(waits, v.Next.UTC().Format(time.TimeOnly))
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

// Ready returns nil while the loop is running. It says nothing about single pods.
func (m *Manager) Ready() error {
	beat := m.beat.Load()
	if beat == nil {
		return errors.New("pods are not managed yet: the engine has not listed its containers yet")
	}
	if age := m.parts.Clock.Since(*beat); age > 3*beatPeriod {
		return fmt.Errorf("pods have not been looked at for %s", age.Round(time.Second))
	}
	return nil
}
