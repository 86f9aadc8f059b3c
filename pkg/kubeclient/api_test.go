package kubeclient

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/rest"

	"github.com/winkube/winkube/pkg/clientset"
)

// api is a small API server with Secrets, ConfigMaps and Pods. For the first two it serves what the Node authorizer allows: lists and
// watches of a single named object. It speaks JSON.
type api struct {
	t    *testing.T
	done chan struct{}

	mu       sync.Mutex
	version  int
	objects  map[string]map[string]any // by path
	watchers map[*watcher]struct{}
	refuse   []int    // status codes of the next responses
	expired  bool     // the next watch gets the error that its version is too old
	log      []string // "VERB path"
	patches  []string
	changed  chan struct{} // capacity 1: something above changed
}

type watcher struct {
	path   string
	events chan map[string]any // closed: the server ends the watch
}

func newAPI(t *testing.T) (*api, clientset.Interface) {
	a := &api{t: t, done: make(chan struct{}), objects: map[string]map[string]any{}, watchers: map[*watcher]struct{}{}, changed: make(chan struct{}, 1)}
	server := httptest.NewServer(a)
	t.Cleanup(func() { close(a.done); server.Close() })
	client, err := clientset.NewForConfig(&rest.Config{Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	return a, client
}

func (a *api) note() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// until waits for a state of the server.
func (a *api) until(what string, ok func() bool) {
	a.t.Helper()
	timeout := time.After(time.Minute)
	for {
		a.mu.Lock()
		done := ok()
		a.mu.Unlock()
		if done {
			return
		}
		select {
		case <-a.changed:
		case <-timeout:
			a.mu.Lock()
			defer a.mu.Unlock()
			a.t.Fatalf("not seen: %s; requests:\n%s", what, strings.Join(a.log, "\n"))
		}
	}
}

// watching waits until n watches are open.
func (a *api) watching(n int) {
	a.t.Helper()
	a.until(fmt.Sprintf("%d watches", n), func() bool { return len(a.watchers) == n })
}

// put stores an object (nil deletes it) and notifies the watches.
func (a *api) put(path string, object any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	kind := "MODIFIED"
	before, existed := a.objects[path]
	fields := before
	if object == nil {
		delete(a.objects, path)
		kind = "DELETED"
	} else {
		data, _ := json.Marshal(object)
		fields = map[string]any{}
		_ = json.Unmarshal(data, &fields)
		a.objects[path] = fields
		if !existed {
			kind = "ADDED"
		}
	}
	fields["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(a.version)
	for w := range a.watchers {
		if w.path == path {
			w.events <- map[string]any{"type": kind, "object": fields}
		}
	}
	a.note()
}

// endWatches closes all watches, as servers do from time to time.
func (a *api) endWatches(expired bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.expired = expired
	for w := range a.watchers {
		close(w.events)
		delete(a.watchers, w)
	}
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	path, q := strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/"), r.URL.Query()
	name, single := strings.CutPrefix(q.Get("fieldSelector"), "metadata.name=")
	verb := r.Method
	if single {
		path += "/" + name
		verb = "LIST"
		if q.Get("watch") != "" {
			verb = "WATCH"
		}
	}
	a.mu.Lock()
	a.log = append(a.log, verb+" "+path)
	a.note()
	if len(a.refuse) > 0 {
		code := a.refuse[0]
		a.refuse = a.refuse[1:]
		a.mu.Unlock()
		fail(w, code)
		return
	}
	if verb == "WATCH" {
		a.watch(w, r, path) // unlocks
		return
	}
	defer a.mu.Unlock()
	answer, code := a.handle(verb, path, body)
	if answer == nil {
		fail(w, code)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(answer)
}

func (a *api) handle(verb, path string, body []byte) (any, int) {
	switch verb {
	case "LIST":
		items := []any{}
		if o := a.objects[path]; o != nil {
			items = append(items, o)
		}
		return map[string]any{"metadata": map[string]any{"resourceVersion": strconv.Itoa(a.version)}, "items": items}, 200
	case "GET":
		if o := a.objects[path]; o != nil {
			return o, 200
		}
		return nil, 404
	case "PATCH":
		return a.patch(strings.TrimSuffix(path, "/status"), body)
	case "POST":
		o := map[string]any{}
		_ = json.Unmarshal(body, &o)
		path += "/" + o["metadata"].(map[string]any)["name"].(string)
		if a.objects[path] != nil {
			return nil, exists
		}
		a.objects[path] = o
		return o, 201
	case "DELETE":
		o := a.objects[path]
		if o == nil {
			return nil, 404
		}
		options := metav1.DeleteOptions{}
		_ = json.Unmarshal(body, &options)
		if *options.GracePeriodSeconds != 0 || string(*options.Preconditions.UID) != o["metadata"].(map[string]any)["uid"] {
			return nil, 409
		}
		delete(a.objects, path)
		return o, 200
	}
	a.t.Errorf("%s %s: a node may not", verb, path)
	return nil, 403
}

func (a *api) patch(path string, body []byte) (any, int) {
	o := a.objects[path]
	if o == nil {
		return nil, 404
	}
	patch := v1.Pod{}
	if err := json.Unmarshal(body, &patch); err != nil || string(patch.UID) != o["metadata"].(map[string]any)["uid"] {
		return nil, 409
	}
	old, _ := json.Marshal(o)
	merged, err := strategicpatch.StrategicMergePatch(old, body, v1.Pod{})
	if err != nil {
		a.t.Error(err)
		return nil, 400
	}
	o = map[string]any{}
	_ = json.Unmarshal(merged, &o)
	a.version++
	o["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(a.version)
	a.objects[path] = o
	a.patches = append(a.patches, string(body))
	return o, 200
}

// watch streams events of one object; a.mu is held and released.
func (a *api) watch(w http.ResponseWriter, r *http.Request, path string) {
	if from := r.URL.Query().Get("resourceVersion"); from == "" {
		a.t.Errorf("a watch of %s without a version", path)
	}
	self := &watcher{path: path, events: make(chan map[string]any, 100)}
	if a.expired {
		a.expired = false
		self.events <- map[string]any{"type": "ERROR", "object": metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: 410, Reason: metav1.StatusReasonExpired}}
	}
	// Changes between list and watch come first.
	if from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion")); a.objects[path] != nil {
		if at, _ := strconv.Atoi(a.objects[path]["metadata"].(map[string]any)["resourceVersion"].(string)); at > from {
			self.events <- map[string]any{"type": "MODIFIED", "object": a.objects[path]}
		}
	}
	a.watchers[self] = struct{}{}
	a.note()
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.watchers, self)
		a.note()
		a.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-a.done:
			return
		case e, ok := <-self.events:
			if !ok {
				return
			}
			_ = json.NewEncoder(w).Encode(e)
			w.(http.Flusher).Flush()
		}
	}
}

// exists makes the handler answer AlreadyExists; on the wire it is 409, like Conflict.
const exists = 1409

func fail(w http.ResponseWriter, code int) {
	reasons := map[int]metav1.StatusReason{403: metav1.StatusReasonForbidden, 404: metav1.StatusReasonNotFound, 409: metav1.StatusReasonConflict,
		exists: metav1.StatusReasonAlreadyExists}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code % 1000)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code % 1000), Reason: reasons[code]})
}

func secret(name, value string) *v1.Secret {
	return &v1.Secret{TypeMeta: metav1.TypeMeta{Kind: "Secret", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: map[string][]byte{"k": []byte(value)}}
}

func configMap(name, value string) *v1.ConfigMap {
	return &v1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: map[string]string{"k": value}}
}

// podWith is a pod that refers to Secrets and, for names with the prefix "cm", to ConfigMaps.
func podWith(uid types.UID, names ...string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod-" + string(uid), UID: uid}}
	for _, n := range names {
		v := v1.Volume{Name: n, VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: n}}}
		if strings.HasPrefix(n, "cm") {
			v.VolumeSource = v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: n}}}
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, v)
	}
	return pod
}
