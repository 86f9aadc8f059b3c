package differential

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// resources are the kinds that kube-proxy reads, by the last part of their path.
var resources = map[string]struct{ kind, version string }{
	"services":       {"Service", "v1"},
	"nodes":          {"Node", "v1"},
	"endpointslices": {"EndpointSlice", "discovery.k8s.io/v1"},
	"servicecidrs":   {"ServiceCIDR", "networking.k8s.io/v1"},
	"events":         {"Event", "events.k8s.io/v1"},
}

// api is as much of an API server as kube-proxy asks of it: lists and watches of objects that the test sets.
type api struct {
	*httptest.Server
	mu       sync.Mutex
	version  int
	objects  map[string]*unstructured.Unstructured // by resource/namespace/name
	watchers map[chan string]string                // to resource
}

func newAPI(t *testing.T) *api {
	a := &api{objects: map[string]*unstructured.Unstructured{}, watchers: map[chan string]string{}}
	a.Server = httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(func() { a.CloseClientConnections(); a.Close() })
	return a
}

// apply adds or replaces the objects of a YAML text; those that have "deleted: true" at the top are removed.
func (a *api) apply(t *testing.T, text string) {
	t.Helper()
	for document := range strings.SplitSeq(text, "\n---\n") {
		if strings.TrimSpace(document) == "" {
			continue
		}
		object := map[string]any{}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatalf("%v in:\n%s", err, document)
		}
		deleted := object["deleted"] == true
		delete(object, "deleted")
		a.set(t, &unstructured.Unstructured{Object: object}, deleted)
	}
}

func (a *api) set(t *testing.T, object *unstructured.Unstructured, deleted bool) {
	resource := ""
	for name, r := range resources {
		if r.kind == object.GetKind() && r.version == object.GetAPIVersion() {
			resource = name
		}
	}
	if resource == "" {
		t.Fatalf("the fake API server does not know %s", object.GroupVersionKind())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	object.SetResourceVersion(fmt.Sprint(a.version))
	key := resource + "/" + object.GetNamespace() + "/" + object.GetName()
	kind := "MODIFIED"
	if _, ok := a.objects[key]; !ok {
		kind = "ADDED"
	}
	a.objects[key] = object
	if deleted {
		kind = "DELETED"
		delete(a.objects, key)
	}
	for watcher, wanted := range a.watchers {
		if wanted == resource {
			watcher <- event(kind, object)
		}
	}
}

func event(kind string, object any) string {
	text, err := json.Marshal(map[string]any{"type": kind, "object": object})
	if err != nil {
		panic(err)
	}
	return string(text) + "\n"
}

func (a *api) serve(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	resource := parts[len(parts)-1]
	known, isList := resources[resource]
	query := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.URL.Path == "/version":
		fmt.Fprint(w, `{"major":"1","minor":"36","gitVersion":"v1.36.3"}`)
	case r.Method != http.MethodGet: // events: taken and forgotten
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"kind":"Event","apiVersion":"events.k8s.io/v1","metadata":{"name":"e"}}`)
	case isList && query.Get("watch") != "":
		a.watch(w, r, resource)
	case isList:
		a.mu.Lock()
		defer a.mu.Unlock()
		items := []any{}
		for key, object := range a.objects {
			if strings.HasPrefix(key, resource+"/") {
				items = append(items, object.Object)
			}
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": known.kind + "List", "apiVersion": known.version,
			"metadata": map[string]string{"resourceVersion": fmt.Sprint(a.version)}, "items": items})
	default:
		a.mu.Lock()
		defer a.mu.Unlock()
		if len(parts) > 1 {
			if object := a.objects[parts[len(parts)-2]+"//"+resource]; object != nil {
				_ = json.NewEncoder(w).Encode(object.Object)
				return
			}
		}
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Message: r.URL.Path + " not found"})
	}
}

// watch streams changes, and first, when asked for, what a list would say with the bookmark that ends it (KEP-3157).
func (a *api) watch(w http.ResponseWriter, r *http.Request, resource string) {
	changes := make(chan string, 100)
	a.mu.Lock()
	known := resources[resource]
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		for key, object := range a.objects {
			if strings.HasPrefix(key, resource+"/") {
				fmt.Fprint(w, event("ADDED", object))
			}
		}
		fmt.Fprint(w, event("BOOKMARK", map[string]any{"kind": known.kind, "apiVersion": known.version, "metadata": map[string]any{
			"resourceVersion": fmt.Sprint(a.version), "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"}}}))
	}
	a.watchers[changes] = resource
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.watchers, changes)
		a.mu.Unlock()
	}()
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case text := <-changes:
			fmt.Fprint(w, text)
			w.(http.Flusher).Flush()
		}
	}
}
