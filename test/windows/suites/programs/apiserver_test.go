package programs

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"
)

// api is as much of an API server as one node asks of it: objects by path, lists that then say nothing more, or with stream what changes, created and patched.
type api struct {
	*httptest.Server
	mu      sync.Mutex
	objects map[string]runtime.Object // by path
	changed chan struct{}             // closed and renewed at each change
	calls   []string
	version string // of Kubernetes; "": v1.36.3
	stream  bool   // watches that were asked for initial events go on telling
}

func newAPI(t *testing.T, objects map[string]runtime.Object) *api {
	a := &api{objects: objects, changed: make(chan struct{})}
	a.Server = httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(func() { a.CloseClientConnections(); a.Close() })
	return a
}

// wait returns the object at path as soon as it satisfies ok.
func (a *api) wait(t *testing.T, path string, ok func(runtime.Object) bool) runtime.Object {
	t.Helper()
	for {
		a.mu.Lock()
		object, changed := a.objects[path], a.changed
		a.mu.Unlock()
		if object != nil && ok(object) {
			return object
		}
		select {
		case <-changed:
		case <-t.Context().Done():
			t.Fatalf("%s did not come; the API was asked:\n%s", path, strings.Join(a.calls, "\n"))
		}
	}
}

func (a *api) serve(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.calls = append(a.calls, r.Method+" "+r.URL.String())
	path := strings.TrimSuffix(r.URL.Path, "/status")
	object, known := a.objects[path]
	a.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	switch {
	case r.URL.Path == "/version":
		fmt.Fprintf(w, `{"gitVersion":%q}`, cmp.Or(a.version, "v1.36.3"))
	case r.URL.Query().Get("watch") != "":
		a.watch(w, r)
	case r.Method == http.MethodGet && known:
		writeJSON(w, http.StatusOK, object)
	case r.Method == http.MethodGet && !strings.Contains(r.URL.Path, "/leases/") && !strings.Contains(r.URL.Path, "/nodes/"):
		a.list(w, path)
	case r.Method == http.MethodPost:
		a.create(w, path, body)
	case (r.Method == http.MethodPatch || r.Method == http.MethodPut) && known:
		a.update(w, r.Method, path, body)
	default:
		writeJSON(w, http.StatusNotFound, &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
			Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Message: r.URL.Path + " not found"})
	}
}

// list answers with what stands below path, in the wire form that needs no knowledge of the list's type.
func (a *api) list(w http.ResponseWriter, path string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	items := []runtime.Object{}
	for p, object := range a.objects {
		if strings.HasSuffix(path, resourceOf(p)) {
			items = append(items, object)
		}
	}
	kind := map[string]string{"nodes": "NodeList", "pods": "PodList", "services": "ServiceList", "endpointslices": "EndpointSliceList"}[path[strings.LastIndex(path, "/")+1:]]
	writeJSON(w, http.StatusOK, map[string]any{"kind": kind, "apiVersion": groupVersion(path), "metadata": map[string]string{"resourceVersion": "1"}, "items": items})
}

// watch streams nothing, or, asked for initial events, what a list would say and the bookmark that ends it.
func (a *api) watch(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flusher := w.(http.Flusher)
	told := map[string]runtime.Object{}
	var more <-chan struct{} // closed when there is
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		more = a.tell(w, r.URL.Path, told)
		kind := map[string]string{"nodes": "Node", "pods": "Pod", "services": "Service", "endpointslices": "EndpointSlice"}[r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]]
		writeEvent(w, "BOOKMARK", map[string]any{"kind": kind, "apiVersion": groupVersion(r.URL.Path), "metadata": map[string]any{
			"resourceVersion": "1", "annotations": map[string]string{metav1.InitialEventsAnnotationKey: "true"}}})
	}
	flusher.Flush()
	for {
		select {
		case <-more:
		case <-r.Context().Done():
			return
		}
		if a.stream {
			more = a.tell(w, r.URL.Path, told)
			flusher.Flush()
		} else {
			more = nil
		}
	}
}

// tell writes events of what differs from what was told, which it brings up to date.
func (a *api) tell(w io.Writer, path string, told map[string]runtime.Object) (more <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for p, object := range a.objects {
		if !strings.HasSuffix(path, resourceOf(p)) || told[p] == object {
			continue
		}
		kind := "MODIFIED"
		if told[p] == nil {
			kind = "ADDED"
		}
		writeEvent(w, kind, object)
		told[p] = object
	}
	for p, object := range told {
		if a.objects[p] == nil {
			writeEvent(w, "DELETED", object)
			delete(told, p)
		}
	}
	return a.changed
}

func (a *api) create(w http.ResponseWriter, path string, body []byte) {
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	accessor.SetUID(types.UID("uid-of-" + accessor.GetName()))
	a.store(path+"/"+accessor.GetName(), object)
	writeJSON(w, http.StatusCreated, object)
}

func (a *api) update(w http.ResponseWriter, method, path string, body []byte) {
	a.mu.Lock()
	object := a.objects[path].DeepCopyObject()
	a.mu.Unlock()
	if method == http.MethodPut {
		decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		object = decoded
	} else if err := patch(object, body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.store(path, object)
	writeJSON(w, http.StatusOK, object)
}

// store puts an object at its path; nil removes what is there.
func (a *api) store(path string, object runtime.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.objects[path] = object; object == nil {
		delete(a.objects, path)
	}
	close(a.changed)
	a.changed = make(chan struct{})
}

func patch(object runtime.Object, body []byte) error {
	before, err := json.Marshal(object)
	if err != nil {
		return err
	}
	after, err := strategicpatch.StrategicMergePatch(before, body, object)
	if err != nil {
		return err
	}
	return json.Unmarshal(after, object)
}

func writeJSON(w http.ResponseWriter, code int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(value)
}

func writeEvent(w io.Writer, kind string, object any) {
	_ = json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": object})
}

// resourceOf cuts the name and the namespace off an object's path: /api/v1/namespaces/default/services/web is of /services.
func resourceOf(path string) string {
	parts := strings.Split(path, "/")
	return "/" + parts[len(parts)-2]
}

func groupVersion(path string) string {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	if parts[0] == "api" {
		return v1.SchemeGroupVersion.String()
	}
	return parts[1] + "/" + parts[2]
}
