package kubeclient

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/clientset/clientsettest"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubetesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
)

// hurried does not wait: every pause ends immediately and is counted.
type hurried struct {
	*clocktesting.FakeClock
}

func (h hurried) After(d time.Duration) <-chan time.Time {
	h.Step(d)
	c := make(chan time.Time, 1)
	c <- h.Now()
	return c
}

// follower is an Objects that runs only the watches of single objects.
func follower(t *testing.T, client clientset.Interface, c clock.Clock) *Objects {
	o := NewObjects(client, "n1")
	o.clock = c
	ctx, cancel := context.WithCancel(context.Background())
	o.ctx = ctx
	o.watches.Go(func() { o.changed.run(ctx) })
	t.Cleanup(func() {
		cancel()
		o.mu.Lock()
		for _, it := range o.items {
			it.stop()
		}
		o.mu.Unlock()
		o.watches.Wait()
	})
	return o
}

func briefly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func value(t *testing.T, o *Objects, name string) string {
	t.Helper()
	s, err := o.Secret(briefly(t), "ns", name)
	if err != nil {
		t.Fatal(err)
	}
	return string(s.Data["k"])
}

func changed(t *testing.T, o *Objects, want ...types.UID) {
	t.Helper()
	var got []types.UID
	for range want {
		select {
		case uid := <-o.Changed():
			got = append(got, uid)
		case <-time.After(time.Minute):
			t.Fatalf("changed %v, want %v", got, want)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Fatalf("changed %v, want %v", got, want)
	}
}

func unchanged(t *testing.T, o *Objects) {
	t.Helper()
	select {
	case uid := <-o.Changed():
		t.Fatalf("%s changed", uid)
	default:
	}
}

func TestOneWatchPerObjectAndItsChanges(t *testing.T) {
	api, client := newAPI(t)
	api.put("ns/secrets/a", secret("a", "1"))
	api.put("ns/configmaps/cm", configMap("cm", "1"))
	o := follower(t, client, clock.RealClock{})
	o.Register(podWith("p1", "a", "cm"))
	o.Register(podWith("p2", "a"))
	o.Register(podWith("p2", "a"))
	api.watching(2)
	if got := value(t, o, "a"); got != "1" {
		t.Errorf("a is %s", got)
	}
	unchanged(t, o) // a first state is not a change
	api.put("ns/secrets/a", secret("a", "2"))
	changed(t, o, "p1", "p2")
	if got := value(t, o, "a"); got != "2" {
		t.Errorf("a is %s", got)
	}
	api.put("ns/configmaps/cm", configMap("cm", "2"))
	changed(t, o, "p1")
	if cm, err := o.ConfigMap(briefly(t), "ns", "cm"); err != nil || cm.Data["k"] != "2" {
		t.Errorf("cm is %v, %v", cm, err)
	}
	api.put("ns/secrets/a", nil)
	changed(t, o, "p1", "p2")
	if _, err := o.Secret(briefly(t), "ns", "a"); !apierrors.IsNotFound(err) || err.Error() != `secrets "a" not found` {
		t.Errorf("a deleted: %v", err)
	}

	o.Unregister("p1") // p2 still needs a
	api.watching(1)
	o.Register(podWith("p2", "b")) // its references replace the earlier ones
	api.until("a watch of b alone", func() bool {
		for w := range api.watchers {
			return len(api.watchers) == 1 && w.path == "ns/secrets/b"
		}
		return false
	})
	o.Unregister("p2")
	o.Unregister("p2")
	api.watching(0)
	if len(o.items) != 0 || len(o.pods) != 0 {
		t.Errorf("left behind: %v %v", o.items, o.pods)
	}
}

func TestMissingObjectAppears(t *testing.T) {
	api, client := newAPI(t)
	o := follower(t, client, clock.RealClock{})
	o.Register(podWith("p1", "a"))
	if _, err := o.Secret(briefly(t), "ns", "a"); !apierrors.IsNotFound(err) {
		t.Errorf("missing: %v", err)
	}
	api.put("ns/secrets/a", secret("a", "1"))
	changed(t, o, "p1")
	if got := value(t, o, "a"); got != "1" {
		t.Errorf("a is %s", got)
	}
}

func TestImmutableIsWatchedNoMore(t *testing.T) {
	api, client := newAPI(t)
	s := secret("a", "1")
	s.Immutable = ptr.To(true)
	api.put("ns/secrets/a", s)
	api.put("ns/secrets/b", secret("b", "1"))
	o := follower(t, client, clock.RealClock{})
	o.Register(podWith("p1", "a", "b"))
	api.watching(1) // of b
	if got := value(t, o, "a") + value(t, o, "b"); got != "11" {
		t.Errorf("a and b are %s", got)
	}
	b := secret("b", "1")
	b.Immutable = ptr.To(true)
	api.put("ns/secrets/b", b)
	changed(t, o, "p1")
	api.watching(0)
	if got := value(t, o, "b"); got != "1" {
		t.Errorf("b is %s", got)
	}
}

func TestRefusals(t *testing.T) {
	api, client := newAPI(t)
	api.put("ns/secrets/a", secret("a", "1"))
	api.refuse = []int{403, 403, 403}
	o := follower(t, client, hurried{clocktesting.NewFakeClock(time.Now())})
	o.Register(podWith("p1", "a"))
	if got := value(t, o, "a"); got != "1" { // it waits for a late authorizer
		t.Errorf("a is %s", got)
	}
	unchanged(t, o)

	for range 200 {
		api.mu.Lock()
		api.refuse = append(api.refuse, 403)
		api.mu.Unlock()
	}
	o.Register(podWith("p2", "b"))
	if _, err := o.Secret(briefly(t), "ns", "b"); !apierrors.IsForbidden(err) {
		t.Errorf("refused for long: %v", err)
	}
	api.until("the end of the refusals", func() bool { return len(api.refuse) == 0 })
	api.put("ns/secrets/b", secret("b", "1"))
	changed(t, o, "p2") // a reader that was refused gets the change
}

func TestOutage(t *testing.T) {
	api, client := newAPI(t)
	api.put("ns/secrets/a", secret("a", "1"))
	o := follower(t, client, hurried{clocktesting.NewFakeClock(time.Now())})
	o.Register(podWith("p1", "a"))
	api.watching(1)
	value(t, o, "a")
	api.mu.Lock()
	api.refuse = []int{500, 403, 500, 500}
	api.mu.Unlock()
	api.endWatches(true)
	if got := value(t, o, "a"); got != "1" { // the known state stays
		t.Errorf("a is %s", got)
	}
	api.until("the end of the outage and a fresh watch", func() bool { return len(api.refuse) == 0 && !api.expired && len(api.watchers) == 1 })
	unchanged(t, o)
	api.put("ns/secrets/a", secret("a", "2"))
	changed(t, o, "p1")

	// A watch that merely ends continues from its version, without a list.
	lists := func() int {
		api.mu.Lock()
		defer api.mu.Unlock()
		return strings.Count(strings.Join(api.log, "\n"), "LIST")
	}
	before := lists()
	api.endWatches(false)
	api.watching(1)
	api.put("ns/secrets/a", secret("a", "3"))
	changed(t, o, "p1")
	if n := lists(); n != before {
		t.Errorf("listed again: %d lists, before %d", n, before)
	}
}

func TestDeadlineNamesTheObject(t *testing.T) {
	_, client := newAPI(t)
	o := NewObjects(client, "n1") // not running: there is never an answer
	o.Register(podWith("p1", "a"))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := o.Secret(ctx, "ns", "a")
	if err == nil || !strings.Contains(err.Error(), "secrets ns/a") {
		t.Errorf("got %v", err)
	}
	if _, err := o.Secret(briefly(t), "ns", "other"); !apierrors.IsNotFound(err) { // not registered: read from the API server
		t.Errorf("got %v", err)
	}
}

func TestChangesCoalesce(t *testing.T) {
	c := newChanges()
	for range 3 {
		c.queue.Add("a")
		c.queue.Add("b")
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { c.run(ctx); close(done) }()
	got := []types.UID{<-c.out, <-c.out}
	if !slices.Equal(got, []types.UID{"a", "b"}) {
		t.Errorf("got %v", got)
	}
	c.queue.Add("a")
	if uid := <-c.out; uid != "a" {
		t.Errorf("got %v", uid)
	}
	cancel()
	<-done
	if c.queue.Len() > 0 {
		t.Error("something was delivered twice")
	}
}

func TestServicesAndNode(t *testing.T) {
	client := clientsettest.NewClientset(
		&v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}},
		&v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "s"}},
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "x"}}}})
	watched := clientsettest.OnceWatched(t, client, "nodes")
	o := NewObjects(client, "n1")
	if _, err := o.Services("ns"); err == nil {
		t.Error("a list of services before there is one")
	}
	nodes := make(chan *v1.Node, 10)
	if err := o.OnNode(func(n *v1.Node) { nodes <- n }); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- o.Run(ctx) }()
	if n := <-nodes; n.Name != "n1" || n.ManagedFields != nil {
		t.Errorf("node %+v", n)
	}
	if n := o.Node(); n == nil || n.Name != "n1" {
		t.Errorf("node %+v", n)
	}
	for _, a := range client.Actions() {
		if l, ok := a.(kubetesting.ListAction); ok && a.GetResource().Resource == "nodes" && l.GetListRestrictions().Fields.String() != "metadata.name=n1" {
			t.Errorf("nodes listed by %s", l.GetListRestrictions().Fields)
		}
	}
	watched()
	if err := client.Nodes().Delete(ctx, "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if n := <-nodes; n != nil || o.Node() != nil {
		t.Errorf("deleted node %+v, %+v", n, o.Node())
	}
	<-o.services.HasSyncedChecker().Done()
	if list, err := o.Services("ns"); err != nil || len(list) != 1 || list[0].Namespace != "ns" {
		t.Errorf("services %v, %v", list, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := o.Run(ctx); err == nil {
		t.Error("ran twice")
	}
}

// TestServices: a new Service comes without a state before, a changed one with both, a deleted one without a state now.
func TestServices(t *testing.T) {
	client := clientsettest.NewClientset()
	watched := clientsettest.OnceWatched(t, client, "services")
	o := NewObjects(client, "n1")
	seen := make(chan string, 10)
	step := func(s *v1.Service) string {
		if s == nil {
			return "none"
		}
		return s.Labels["step"]
	}
	if err := o.OnService(func(before, now *v1.Service) { seen <- step(before) + ", " + step(now) }, nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(briefly(t))
	done := make(chan error)
	go func() { done <- o.Run(ctx) }()
	watched()
	services := client.Services("ns")
	for _, change := range []struct {
		do   func() error
		want string
	}{
		{func() error {
			_, err := services.Create(ctx, &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", Labels: map[string]string{"step": "1"}}}, metav1.CreateOptions{})
			return err
		}, "none, 1"},
		{func() error {
			_, err := services.Update(ctx, &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", Labels: map[string]string{"step": "2"}}}, metav1.UpdateOptions{})
			return err
		}, "1, 2"},
		{func() error { return services.Delete(ctx, "s", metav1.DeleteOptions{}) }, "2, none"},
	} {
		if err := change.do(); err != nil {
			t.Fatal(err)
		}
		if got := <-seen; got != change.want {
			t.Errorf("saw %s, want %s", got, change.want)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestTokenWaitsForTheAPIServer(t *testing.T) {
	client := clientsettest.NewClientset()
	refusals := 3
	client.PrependReactor("create", "serviceaccounts", func(a kubetesting.Action) (bool, runtime.Object, error) {
		if refusals--; refusals >= 0 {
			return true, nil, apierrors.NewForbidden(v1.Resource("serviceaccounts"), "sa", nil)
		}
		return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{Token: "x"}}, nil
	})
	o := NewObjects(client, "n1")
	o.clock = hurried{clocktesting.NewFakeClock(time.Now())}
	got, err := o.Token(briefly(t), "ns", "sa", &authenticationv1.TokenRequest{})
	if err != nil || got.Status.Token != "x" {
		t.Errorf("got %v, %v", got, err)
	}
	refusals = 1 << 30
	if _, err := o.Token(briefly(t), "ns", "sa", &authenticationv1.TokenRequest{}); !apierrors.IsForbidden(err) {
		t.Errorf("got %v", err)
	}
}

func TestReferences(t *testing.T) {
	ref := func(name string) v1.LocalObjectReference { return v1.LocalObjectReference{Name: name} }
	env := func(i string) ([]v1.EnvVar, []v1.EnvFromSource) {
		return []v1.EnvVar{{Name: "A", Value: "x"},
				{ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: ref("s-env-" + i)}}},
				{ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: ref("c-env-" + i)}}},
				{ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{}}}},
			[]v1.EnvFromSource{{SecretRef: &v1.SecretEnvSource{LocalObjectReference: ref("s-from-" + i)}}, {ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: ref("c-from-" + i)}}}
	}
	var init, app v1.Container
	var debug v1.EphemeralContainer
	init.Env, init.EnvFrom = env("init")
	app.Env, app.EnvFrom = env("app")
	debug.Env, debug.EnvFrom = env("debug")
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: v1.PodSpec{
		ImagePullSecrets: []v1.LocalObjectReference{ref("pull"), ref("")},
		InitContainers:   []v1.Container{init}, Containers: []v1.Container{app}, EphemeralContainers: []v1.EphemeralContainer{debug},
		Volumes: []v1.Volume{
			{VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s-vol"}}},
			{VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: ref("c-vol")}}},
			{VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
			{VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{NodePublishSecretRef: ptr.To(ref("s-csi"))}}},
			{VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
				{Secret: &v1.SecretProjection{LocalObjectReference: ref("s-proj")}}, {ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: ref("c-proj")}}}}}},
		}}}
	var got []string
	for k := range references(p) {
		got = append(got, string(k.kind)+"/"+k.namespace+"/"+k.name)
	}
	slices.Sort(got)
	want := strings.Fields(`configmaps/ns/c-env-app configmaps/ns/c-env-debug configmaps/ns/c-env-init configmaps/ns/c-from-app configmaps/ns/c-from-debug
		configmaps/ns/c-from-init configmaps/ns/c-proj configmaps/ns/c-vol secrets/ns/pull secrets/ns/s-csi secrets/ns/s-env-app secrets/ns/s-env-debug
		secrets/ns/s-env-init secrets/ns/s-from-app secrets/ns/s-from-debug secrets/ns/s-from-init secrets/ns/s-proj secrets/ns/s-vol`)
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}
