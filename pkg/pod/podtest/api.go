package podtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// API is an API server with the pods of one node: pod.Feed, pod.StatusWriter and pod.Objects. It deletes gracefully, reports phases that go
// back and restart counts that decrease, and notifies every Manager that follows it.
type API struct {
	Log *Log
	// OnWrite is called with every status that is written and differs from the one before, if set.
	OnWrite func(name string, status *v1.PodStatus)

	mu         sync.Mutex
	pods       map[types.UID]*v1.Pod
	statics    map[types.UID]*v1.Pod
	secrets    map[string]*v1.Secret
	registered map[types.UID]bool
	ready      map[types.UID][]v1.ConditionStatus // see Readiness
	down       bool
	version    int
	Violations []string
	feeds      []*feed
	changed    chan types.UID
}

type feed struct {
	wake chan struct{}
	next pod.Update
}

// NewAPI returns an empty API.
func NewAPI(log *Log) *API {
	return &API{
		Log: log, pods: map[types.UID]*v1.Pod{}, statics: map[types.UID]*v1.Pod{}, secrets: map[string]*v1.Secret{}, registered: map[types.UID]bool{}, ready: map[types.UID][]v1.ConditionStatus{},
		changed: make(chan types.UID, 100),
	}
}

// Run implements pod.Feed.
func (a *API) Run(ctx context.Context, out chan<- pod.Update) error {
	f := &feed{wake: make(chan struct{}, 1), next: pod.Update{Synced: true}}
	a.mu.Lock()
	for _, p := range a.sorted() {
		f.next.Set = append(f.next.Set, a.desired(p))
	}
	for _, p := range a.statics {
		f.next.Set = append(f.next.Set, a.desired(p))
	}
	a.feeds = append(a.feeds, f)
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		a.feeds = slices.DeleteFunc(a.feeds, func(other *feed) bool { return other == f })
		a.mu.Unlock()
	}()
	first := true
	for {
		a.mu.Lock()
		u := f.next
		f.next = pod.Update{Synced: true}
		a.mu.Unlock()
		if first || len(u.Set)+len(u.Gone)+len(u.Strays) > 0 {
			first = false
			select {
			case out <- u:
			case <-ctx.Done():
				return nil
			}
		}
		select {
		case <-f.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// desired returns a copy; the lock is held. Mirror pods are only included with their static pods.
func (a *API) desired(p *v1.Pod) pod.Desired {
	d := pod.Desired{Pod: p.DeepCopy()}
	if a.statics[p.UID] != nil {
		for _, m := range a.pods {
			if m.Annotations[v1.MirrorPodAnnotationKey] != "" && m.Name == p.Name && m.Namespace == p.Namespace {
				d.Mirror = m.DeepCopy()
			}
		}
	}
	return d
}

// sorted lists the pods except mirror pods, by creation time and name; the lock is held.
func (a *API) sorted() []*v1.Pod {
	var list []*v1.Pod
	for _, p := range a.pods {
		if p.Annotations[v1.MirrorPodAnnotationKey] == "" {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(x, y *v1.Pod) int {
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.Name, y.Name))
	})
	return list
}

func (a *API) send(change func(*pod.Update)) {
	for _, f := range a.feeds {
		change(&f.next)
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
}

func (a *API) sendSet(p *v1.Pod) {
	if p.Annotations[v1.MirrorPodAnnotationKey] != "" {
		for _, s := range a.statics {
			if s.Name == p.Name && s.Namespace == p.Namespace {
				a.send(func(u *pod.Update) { u.Set = append(u.Set, a.desired(s)) })
			}
		}
		return
	}
	a.send(func(u *pod.Update) { u.Set = append(u.Set, a.desired(p)) })
}

// Create adds a pod. It sets UID, phase and times if they are unset.
func (a *API) Create(p *v1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p = p.DeepCopy()
	p.UID = cmp.Or(p.UID, types.UID("uid-"+p.Name))
	p.Namespace = cmp.Or(p.Namespace, "default")
	if p.CreationTimestamp.IsZero() {
		p.CreationTimestamp = metav1.Now()
	}
	p.Generation = max(p.Generation, 1)
	p.Status.Phase = cmp.Or(p.Status.Phase, v1.PodPending)
	a.touch(p)
	a.pods[p.UID] = p
	a.sendSet(p)
}

// CreateStatic adds a static pod, which the API server does not have.
func (a *API) CreateStatic(p *v1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.statics[p.UID] = p
	a.sendSet(p)
}

// RemoveStatic removes a static pod.
func (a *API) RemoveStatic(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.statics[uid]
	d := a.desired(p)
	delete(a.statics, uid)
	a.send(func(u *pod.Update) {
		u.Gone = append(u.Gone, p)
		if d.Mirror != nil {
			u.Strays = append(u.Strays, d.Mirror)
		}
	})
}

func (a *API) touch(p *v1.Pod) {
	a.version++
	p.ResourceVersion = fmt.Sprint(a.version)
}

// Update changes a pod's spec or metadata.
func (a *API) Update(name string, change func(*v1.Pod)) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.named(name)
	if p == nil {
		return fmt.Errorf("no pod %s", name)
	}
	change(p)
	p.Generation++
	a.touch(p)
	a.sendSet(p)
	return nil
}

func (a *API) named(name string) *v1.Pod {
	for _, p := range a.pods {
		if p.Name == name {
			return p
		}
	}
	return nil
}

// Remove deletes a pod as users do: with grace in seconds, or immediately with 0.
func (a *API) Remove(name string, grace int64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.named(name)
	if p == nil {
		return fmt.Errorf("no pod %s", name)
	}
	if p.DeletionTimestamp == nil || grace < *p.DeletionGracePeriodSeconds {
		when := metav1.NewTime(time.Now().Add(podspec.Seconds(grace)))
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &when, &grace
		p.Generation++
		a.touch(p)
	}
	if grace == 0 {
		a.drop(p)
		return nil
	}
	a.sendSet(p)
	return nil
}

func (a *API) drop(p *v1.Pod) {
	delete(a.pods, p.UID)
	if p.Annotations[v1.MirrorPodAnnotationKey] != "" {
		a.sendSet(p)
		return
	}
	final := p.DeepCopy()
	a.send(func(u *pod.Update) {
		u.Set = slices.DeleteFunc(u.Set, func(d pod.Desired) bool { return d.Pod.UID == p.UID })
		u.Gone = append(u.Gone, final)
	})
}

// SetDown makes writes fail, or succeed again.
func (a *API) SetDown(down bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.down = down
}

var errNoAPI = errors.New("connection refused")

func notFound(name string) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
}

// Write implements pod.StatusWriter.
func (a *API) Write(ctx context.Context, p *v1.Pod, status v1.PodStatus) error {
	if err := sleep(ctx, time.Microsecond); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down {
		return errNoAPI
	}
	mine := a.pods[p.UID]
	if mine == nil {
		return notFound(p.Name)
	}
	a.check(mine, &status)
	if equality.Semantic.DeepEqual(mine.Status, status) {
		return nil // like the real one, which skips writes without a difference
	}
	mine.Status = *status.DeepCopy()
	a.noteReady(mine)
	if a.OnWrite != nil {
		a.OnWrite(mine.Name, &mine.Status)
	}
	a.touch(mine)
	a.sendSet(mine)
	return nil
}

// check records status changes that must never happen.
func (a *API) check(p *v1.Pod, status *v1.PodStatus) {
	violate := func(format string, args ...any) {
		text := fmt.Sprintf("status of "+p.Name+": "+format, args...)
		a.Violations = append(a.Violations, text)
		a.Log.Printf("VIOLATION %s", text)
	}
	old := &p.Status
	if (old.Phase == v1.PodFailed || old.Phase == v1.PodSucceeded) && status.Phase != old.Phase {
		violate("phase goes from %s to %s", old.Phase, status.Phase)
	}
	if old.StartTime != nil && !old.StartTime.Equal(status.StartTime) {
		violate("startTime changes")
	}
	if status.Phase == "" {
		violate("no phase")
	}
	for _, was := range slices.Concat(old.InitContainerStatuses, old.ContainerStatuses) {
		for _, is := range slices.Concat(status.InitContainerStatuses, status.ContainerStatuses) {
			if was.Name == is.Name && is.RestartCount < was.RestartCount {
				violate("restartCount of %s goes from %d to %d", is.Name, was.RestartCount, is.RestartCount)
			}
			if was.Name == is.Name && is.RestartCount > was.RestartCount+1 {
				violate("restartCount of %s jumps from %d to %d", is.Name, was.RestartCount, is.RestartCount)
			}
		}
	}
}

// Delete implements pod.StatusWriter.
func (a *API) Delete(ctx context.Context, p *v1.Pod) error {
	if err := sleep(ctx, time.Microsecond); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down {
		return errNoAPI
	}
	if mine := a.pods[p.UID]; mine != nil {
		a.Log.Printf("api: delete %s", p.Name)
		a.drop(mine)
	}
	return nil
}

// CreateMirror implements pod.StatusWriter.
func (a *API) CreateMirror(ctx context.Context, mirror *v1.Pod) error {
	if err := sleep(ctx, time.Microsecond); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down {
		return errNoAPI
	}
	if old := a.named(mirror.Name); old != nil {
		if old.Annotations[v1.MirrorPodAnnotationKey] == mirror.Annotations[v1.MirrorPodAnnotationKey] {
			return nil
		}
		return apierrors.NewAlreadyExists(schema.GroupResource{Resource: "pods"}, mirror.Name)
	}
	if len(mirror.OwnerReferences) != 1 || mirror.UID != "" {
		a.Violations = append(a.Violations, "mirror without owner or with UID")
	}
	a.Log.Printf("api: create mirror %s", mirror.Name)
	a.version++
	m := mirror.DeepCopy()
	m.UID = types.UID(fmt.Sprintf("mirror-%d", a.version))
	m.Generation = 1
	a.touch(m)
	a.pods[m.UID] = m
	a.sendSet(m)
	return nil
}

// Register implements pod.Objects.
func (a *API) Register(p *v1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.registered[p.UID] = true
}

// Unregister implements pod.Objects.
func (a *API) Unregister(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.registered, uid)
}

// SetSecret creates or changes a Secret and notifies the registered pods.
func (a *API) SetSecret(s *v1.Secret) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.secrets[s.Name] = s
	for uid := range a.registered {
		a.changed <- uid
	}
}

// Secret implements pod.Objects.
func (a *API) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.secrets[name]; s != nil {
		return s, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
}

// ConfigMap implements pod.Objects; there are none.
func (a *API) ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
}

// Token implements pod.Objects; there are none.
func (a *API) Token(context.Context, string, string, *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	return nil, errNoAPI
}

// RuntimeHandler implements pod.Objects; there are no RuntimeClasses.
func (a *API) RuntimeHandler(_ context.Context, name string) (string, error) {
	return "", apierrors.NewNotFound(schema.GroupResource{Group: "node.k8s.io", Resource: "runtimeclasses"}, name)
}

// Services implements pod.Objects; there are none.
func (a *API) Services(string) ([]*v1.Service, error) { return nil, nil }

// Node implements pod.Objects.
func (a *API) Node() *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "node-uid"}}
}

// Changed implements pod.Objects.
func (a *API) Changed() <-chan types.UID { return a.changed }

// Pod returns a copy of the named pod, nil if there is none.
func (a *API) Pod(name string) *v1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.named(name); p != nil {
		return p.DeepCopy()
	}
	return nil
}

// String prints the pods as kubectl would, with the relevant parts of their statuses.
func (a *API) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	list := a.sorted()
	for _, p := range a.pods {
		if p.Annotations[v1.MirrorPodAnnotationKey] != "" {
			list = append(list, p)
		}
	}
	for _, p := range list {
		var conditions []string
		for _, c := range p.Status.Conditions {
			if c.Status == v1.ConditionTrue {
				conditions = append(conditions, string(c.Type))
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", p.Name, p.Status.Phase, cmp.Or(p.Status.Reason, "-"), cmp.Or(p.Status.PodIP, "-"), strings.Join(conditions, ","))
		for _, st := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses) {
			flags := []string{fmt.Sprintf("restarts=%d", st.RestartCount)}
			if st.Started != nil && *st.Started {
				flags = append(flags, "started")
			}
			if st.Ready {
				flags = append(flags, "ready")
			}
			fmt.Fprintf(w, "  %s\t%s\tlast %s\t%s\t%s\n", st.Name, state(st.State), state(st.LastTerminationState), cmp.Or(strings.TrimPrefix(st.ContainerID, pod.ContainerIDPrefix), "-"), strings.Join(flags, " "))
		}
	}
	w.Flush()
	return trimLines(b.String())
}

func trimLines(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return b.String()
}

func state(s v1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "Running"
	case s.Waiting != nil:
		return "Waiting(" + s.Waiting.Reason + ")"
	case s.Terminated != nil:
		return fmt.Sprintf("%s(%d)", s.Terminated.Reason, s.Terminated.ExitCode)
	}
	return "-"
}
