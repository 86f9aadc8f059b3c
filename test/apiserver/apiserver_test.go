package apiserver_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/winkube/winkube/test/apiserver"
)

func start(t *testing.T, form string) (*apiserver.Server, kubernetes.Interface) {
	t.Helper()
	s, err := apiserver.New(form)
	if err != nil {
		t.Fatal(err)
	}
	content := rest.ContentConfig{ContentType: form, AcceptContentTypes: form + ",application/json"}
	client, err := kubernetes.NewForConfig(&rest.Config{Host: apiserver.Start(t, s), QPS: -1, ContentConfig: content})
	if err != nil {
		t.Fatal(err)
	}
	return s, client
}

func service(name, ip string) *v1.Service {
	return &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: v1.ServiceSpec{ClusterIP: ip}}
}

func forms(t *testing.T, test func(t *testing.T, form string)) {
	for _, form := range []string{apiserver.JSON, apiserver.Protobuf} {
		t.Run(strings.TrimPrefix(form, "application/"), func(t *testing.T) { test(t, form) })
	}
}

// TestClient: client-go's calls get the answers that they expect from a real server.
func TestClient(t *testing.T) {
	forms(t, func(t *testing.T, form string) {
		s, client := start(t, form)
		ctx := t.Context()
		nodes := client.CoreV1().Nodes()
		if _, err := nodes.Get(ctx, "n1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("no node: %v", err)
		}
		made, err := nodes.Create(ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{"a": "1", "b": "2"}}}, metav1.CreateOptions{})
		if err != nil || made.UID == "" || made.ResourceVersion == "" {
			t.Fatalf("created: %+v, %v", made, err)
		}
		if _, err := nodes.Create(ctx, made, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
			t.Errorf("created twice: %v", err)
		}
		for kind, body := range map[types.PatchType]string{types.StrategicMergePatchType: `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, types.MergePatchType: `{"metadata":{"annotations":{"b":null}}}`} {
			if _, err := nodes.Patch(ctx, "n1", kind, []byte(body), metav1.PatchOptions{}, "status"); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		}
		got, err := nodes.Get(ctx, "n1", metav1.GetOptions{})
		if err != nil || len(got.Annotations) != 1 || len(got.Status.Conditions) != 1 || got.UID != made.UID || got.ResourceVersion == made.ResourceVersion {
			t.Errorf("patched: %+v, %v", got, err)
		}
		got.Labels = map[string]string{"l": "x"}
		if _, err := nodes.Update(ctx, got, metav1.UpdateOptions{}); err != nil || s.Get("/api/v1/nodes/n1").(*v1.Node).Labels["l"] != "x" {
			t.Errorf("updated: %v", err)
		}
		all, err := nodes.List(ctx, metav1.ListOptions{})
		if err != nil || len(all.Items) != 1 || all.Items[0].Name != "n1" || all.ResourceVersion == "" {
			t.Errorf("list: %+v, %v", all, err)
		}
		if none, err := client.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{}); err != nil || len(none.Items) != 0 {
			t.Errorf("list of nothing: %+v, %v", none, err)
		}
		if err := nodes.Delete(ctx, "n1", metav1.DeleteOptions{}); err != nil || s.Get("/api/v1/nodes/n1") != nil {
			t.Errorf("deleted: %v", err)
		}
		if version, err := client.Discovery().ServerVersion(); err != nil || version.GitVersion != "v1.36.3" {
			t.Errorf("version %v, %v", version, err)
		}
		calls := s.Calls()
		if !slices.Contains(calls, "POST /api/v1/nodes") || !slices.Contains(calls, "DELETE /api/v1/nodes/n1") {
			t.Errorf("calls %q", calls)
		}
	})
}

// TestInformers: informers receive existing objects and each change; each informer only its kind.
func TestInformers(t *testing.T) {
	forms(t, func(t *testing.T, form string) {
		s, client := start(t, form)
		if err := s.Set(service("a", "10.0.0.1"), &discovery.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "a-1"}}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		factory := informers.NewSharedInformerFactory(client, 0)
		seen := make(chan string, 100)
		say := func(what string) func(any) {
			return func(o any) { seen <- fmt.Sprint(what, " ", o.(*v1.Service).Name, " ", o.(*v1.Service).Spec.ClusterIP) }
		}
		handler := cache.ResourceEventHandlerFuncs{AddFunc: say("add"), UpdateFunc: func(_, o any) { say("update")(o) }, DeleteFunc: say("delete")}
		if _, err := factory.Core().V1().Services().Informer().AddEventHandler(handler); err != nil {
			t.Fatal(err)
		}
		factory.Start(ctx.Done())
		t.Cleanup(func() { cancel(); factory.Shutdown() })
		want := func(what string) {
			t.Helper()
			select {
			case got := <-seen:
				if got != what {
					t.Errorf("seen %q, want %q", got, what)
				}
			case <-time.After(time.Minute):
				t.Fatalf("not seen: %s", what)
			}
		}
		want("add a 10.0.0.1")
		if err := s.Set(service("b", "10.0.0.2"), service("a", "10.0.0.3")); err != nil {
			t.Fatal(err)
		}
		want("add b 10.0.0.2")
		want("update a 10.0.0.3")
		if err := s.Delete("/api/v1/namespaces/shop/services/b"); err != nil {
			t.Fatal(err)
		}
		want("delete b 10.0.0.2")
	})
}

// TestWatchSince: a watch first sends the changes since the list; a silent server sends nothing.
func TestWatchSince(t *testing.T) {
	forms(t, func(t *testing.T, form string) {
		s, client := start(t, form)
		if err := s.Set(service("a", "10.0.0.1"), service("b", "10.0.0.2")); err != nil {
			t.Fatal(err)
		}
		services := client.CoreV1().Services("")
		list, err := services.List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 2 {
			t.Fatalf("%+v, %v", list, err)
		}
		if err := s.Set(service("a", "10.0.0.3")); err != nil {
			t.Fatal(err)
		}
		if err := s.Delete("/api/v1/namespaces/shop/services/b"); err != nil {
			t.Fatal(err)
		}
		changes, err := services.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		if err != nil {
			t.Fatal(err)
		}
		defer changes.Stop()
		for _, want := range []struct {
			kind watch.EventType
			name string
		}{{watch.Modified, "a"}, {watch.Deleted, "b"}} {
			if got := <-changes.ResultChan(); got.Type != want.kind || got.Object.(*v1.Service).Name != want.name {
				t.Errorf("%s %+v, want %s %s", got.Type, got.Object, want.kind, want.name)
			}
		}
	})
	s, err := apiserver.New(apiserver.JSON)
	if err != nil {
		t.Fatal(err)
	}
	s.Silent = true
	client, err := kubernetes.NewForConfig(&rest.Config{Host: apiserver.Start(t, s)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Set(service("a", "10.0.0.1")); err != nil {
		t.Fatal(err)
	}
	yes := true
	ctx, cancel := context.WithCancel(t.Context())
	changes, err := client.CoreV1().Services("").Watch(ctx, metav1.ListOptions{SendInitialEvents: &yes, AllowWatchBookmarks: true, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	if err != nil {
		t.Fatal(err)
	}
	if first, end := <-changes.ResultChan(), <-changes.ResultChan(); first.Type != watch.Added || end.Type != watch.Bookmark {
		t.Errorf("a silent server begins with %s, %s", first.Type, end.Type)
	}
	if err := s.Set(service("a", "10.0.0.9")); err != nil {
		t.Fatal(err)
	}
	cancel()
	for event := range changes.ResultChan() {
		if event.Type != watch.Error {
			t.Errorf("a silent server tells %s", event.Type)
		}
	}
}

// TestWait: a change wakes a waiter.
func TestWait(t *testing.T) {
	s, client := start(t, apiserver.JSON)
	go func() { // it ends with the call
		_, _ = client.CoreV1().Nodes().Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
	}()
	s.Wait(t, "/api/v1/nodes/n1", func(o runtime.Object) bool { return o.(*v1.Node).UID != "" })
	if objects, _ := s.All(); len(objects) != 1 {
		t.Errorf("%d objects", len(objects))
	}
	if err := s.Delete("/api/v1/none/n1"); err == nil {
		t.Error("a path of no resource was accepted")
	}
}
