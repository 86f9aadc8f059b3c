// Package apiserver is a minimal in-memory Kubernetes API server for the programs of one node. It stores objects of
// client-go's types by path, and supports list, watch (from the existing objects, KEP-3157, or from a version), create,
// replace, patch and delete. It implements neither selectors nor validation, and no authentication.
package apiserver

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
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

	"github.com/winkube/winkube/pkg/wake"
)

// Content types of a Server's responses.
const (
	JSON     = runtime.ContentTypeJSON
	Protobuf = runtime.ContentTypeProtobuf
)

// Server is an http.Handler. Its methods may be called while it serves.
type Server struct {
	// Version is the version that the server reports; "" means v1.36.3. Set it before the server is used.
	Version string
	// Silent makes watches send existing objects at their start, but no later changes. Set it before the server is
	// used.
	Silent bool

	form runtime.SerializerInfo

	mu       sync.Mutex
	revision int
	objects  map[string]*entry
	order    map[string][]*entry // by resource, in order of creation
	watches  map[*watch]string   // value: the resource
	deleted  []deletion
	changed  chan struct{} // closed and replaced at each change
	calls    []string
}

// entry is one object. It is encoded once, when it is set.
type entry struct {
	key      string
	object   runtime.Object
	revision int
	data     []byte
	added    []byte // the event for watches that start with existing objects
}

type deletion struct {
	resource string
	revision int
	event    []byte
}

// watch is an active watch: the events that it has not sent yet. Server.mu guards it.
type watch struct {
	events [][]byte
	more   wake.Signal
}

// New returns a Server without objects that responds with contentType: JSON or Protobuf.
func New(contentType string) (*Server, error) {
	form, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), contentType)
	if !ok {
		return nil, fmt.Errorf("client-go does not know %s", contentType)
	}
	return &Server{form: form, revision: 1, objects: map[string]*entry{}, order: map[string][]*entry{}, watches: map[*watch]string{}, changed: make(chan struct{})}, nil
}

// Start serves s on loopback until the test ends and returns the URL.
func Start(t testing.TB, s *Server) (url string) {
	server := httptest.NewServer(s)
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	return server.URL
}

// Set adds or replaces objects, at the paths of their types and names, and notifies watches.
func (s *Server) Set(objects ...runtime.Object) error {
	for _, object := range objects {
		to, err := placeOf(object)
		if err != nil {
			return err
		}
		s.mu.Lock()
		err = s.put(to, object)
		s.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// Delete removes the object at path and notifies watches. A missing object is not an error.
func (s *Server) Delete(path string) error {
	at, err := parse(path)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remove(at)
}

// Remove deletes an object by its type, namespace and name, as Delete does.
func (s *Server) Remove(object runtime.Object) error {
	at, err := placeOf(object)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remove(at)
}

// Get returns the object at path, which the caller must not change; nil: not found.
func (s *Server) Get(path string) runtime.Object {
	at, err := parse(path)
	if err != nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.objects[at.key()]; e != nil {
		return e.object
	}
	return nil
}

// All returns every object, and a channel that is closed at the next change.
func (s *Server) All() (objects []runtime.Object, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, entries := range s.order {
		for _, e := range entries {
			objects = append(objects, e.object)
		}
	}
	return objects, s.changed
}

// Wait returns the object at path as soon as ok returns true for it. It fails the test if the test ends first.
func (s *Server) Wait(t testing.TB, path string, ok func(runtime.Object) bool) runtime.Object {
	t.Helper()
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if object := s.Get(path); object != nil && ok(object) {
			return object
		}
		select {
		case <-changed:
		case <-t.Context().Done():
			t.Fatalf("%s did not come; the API was asked:\n%s", path, strings.Join(s.Calls(), "\n"))
		}
	}
}

// Calls returns the requests so far, each as "METHOD URL".
func (s *Server) Calls() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// put stores a copy of object with a new resource version; s.mu is held.
func (s *Server) put(to place, object runtime.Object) error {
	object = object.DeepCopyObject()
	accessor, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	s.revision++
	accessor.SetResourceVersion(strconv.Itoa(s.revision))
	e := &entry{key: to.key(), object: object, revision: s.revision}
	if e.data, err = s.encode(object); err == nil {
		e.added, err = s.event("ADDED", e.data)
	}
	if err != nil {
		return err
	}
	resource := to.kindKey()
	event := e.added
	if old := s.objects[e.key]; old != nil {
		s.order[resource][slices.Index(s.order[resource], old)] = e
		if event, err = s.event("MODIFIED", e.data); err != nil {
			return err
		}
	} else {
		s.order[resource] = append(s.order[resource], e)
	}
	s.objects[e.key] = e
	s.tell(resource, event)
	return nil
}

// remove deletes the object at a place; s.mu is held.
func (s *Server) remove(at place) error {
	e := s.objects[at.key()]
	if e == nil {
		return nil
	}
	s.revision++
	last := e.object.DeepCopyObject()
	accessor, err := meta.Accessor(last)
	if err != nil {
		return err
	}
	accessor.SetResourceVersion(strconv.Itoa(s.revision))
	data, err := s.encode(last)
	if err != nil {
		return err
	}
	event, err := s.event("DELETED", data)
	if err != nil {
		return err
	}
	resource := at.kindKey()
	delete(s.objects, e.key)
	s.order[resource] = slices.DeleteFunc(s.order[resource], func(o *entry) bool { return o == e })
	s.deleted = append(s.deleted, deletion{resource, s.revision, event})
	s.tell(resource, event)
	return nil
}

// tell sends an event to the resource's watches and wakes all waiters; s.mu is held.
func (s *Server) tell(resource string, event []byte) {
	for w, wanted := range s.watches {
		if wanted == resource && !s.Silent {
			w.events = append(w.events, event)
			w.more.Send()
		}
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Server) encode(object runtime.Object) ([]byte, error) {
	gvk, err := typeOf(object)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = scheme.Codecs.EncoderForVersion(s.form.Serializer, gvk.GroupVersion()).Encode(object, &out)
	return out.Bytes(), err
}

// event encodes a change as in a watch's stream.
func (s *Server) event(kind string, object []byte) ([]byte, error) {
	var out bytes.Buffer
	stream := s.form.StreamSerializer
	encoder := scheme.Codecs.EncoderForVersion(stream.Serializer, v1.SchemeGroupVersion)
	err := encoder.Encode(&metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: object}}, stream.NewFrameWriter(&out))
	return out.Bytes(), err
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.mu.Lock()
	s.calls = append(s.calls, r.Method+" "+r.URL.String())
	s.mu.Unlock()
	if r.URL.Path == "/version" {
		version := cmp.Or(s.Version, "v1.36.3")
		w.Header().Set("Content-Type", JSON)
		_ = json.NewEncoder(w).Encode(map[string]string{"major": "1", "minor": "36", "gitVersion": version})
		return
	}
	at, err := parse(r.URL.Path)
	if err != nil {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, err.Error())
		return
	}
	if r.Method == http.MethodGet && at.name == "" && r.URL.Query().Get("watch") != "" {
		s.watch(w, r, at)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.objects[at.key()]
	switch {
	case r.Method == http.MethodGet && at.name == "":
		s.list(w, at)
	case r.Method == http.MethodPost && at.name == "":
		s.create(w, at, body)
	case have == nil || r.Method == http.MethodPost:
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound, r.URL.Path+" not found")
	case r.Method == http.MethodGet:
		s.answer(w, http.StatusOK, have.data)
	case r.Method == http.MethodPut || r.Method == http.MethodPatch:
		s.change(w, r.Method, at, have, body)
	case r.Method == http.MethodDelete:
		if err := s.remove(at); err != nil {
			refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, err.Error())
			return
		}
		s.answer(w, http.StatusOK, have.data)
	default:
		refuse(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, r.Method)
	}
}

// list responds with all objects of a resource, from all namespaces; s.mu is held, as in the functions below.
func (s *Server) list(w http.ResponseWriter, of place) {
	list, err := scheme.Scheme.New(of.kind.GroupVersion().WithKind(of.kind.Kind + "List"))
	var items []runtime.Object
	for _, e := range s.order[of.kindKey()] {
		items = append(items, e.object)
	}
	var data []byte
	if err == nil {
		err = meta.SetList(list, items)
	}
	if err == nil {
		list.(metav1.ListMetaAccessor).GetListMeta().SetResourceVersion(strconv.Itoa(s.revision))
		data, err = s.encode(list)
	}
	if err != nil {
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, err.Error())
		return
	}
	s.answer(w, http.StatusOK, data)
}

func (s *Server) create(w http.ResponseWriter, in place, body []byte) {
	object, accessor, err := decode(body)
	if err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	in.name = accessor.GetName()
	if s.objects[in.key()] != nil {
		refuse(w, http.StatusConflict, metav1.StatusReasonAlreadyExists, in.name+" already exists")
		return
	}
	accessor.SetUID(types.UID("uid-of-" + in.name))
	if accessor.GetNamespace() == "" {
		accessor.SetNamespace(in.namespace)
	}
	s.keep(w, http.StatusCreated, in, object)
}

func (s *Server) change(w http.ResponseWriter, method string, at place, have *entry, body []byte) {
	var object runtime.Object
	var err error
	if method == http.MethodPut {
		object, _, err = decode(body)
	} else {
		object, err = patch(have.object, body)
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	s.keep(w, http.StatusOK, at, object)
}

// keep stores an object and responds with it.
func (s *Server) keep(w http.ResponseWriter, code int, at place, object runtime.Object) {
	if err := s.put(at, object); err != nil {
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, err.Error())
		return
	}
	s.answer(w, code, s.objects[at.key()].data)
}

func (s *Server) answer(w http.ResponseWriter, code int, data []byte) {
	w.Header().Set("Content-Type", s.form.MediaType)
	w.WriteHeader(code)
	_, _ = w.Write(data)
}

func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	w.Header().Set("Content-Type", JSON)
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Reason: reason, Code: int32(code), Message: message})
}

func decode(body []byte) (runtime.Object, metav1.Object, error) {
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		return nil, nil, err
	}
	accessor, err := meta.Accessor(object)
	return object, accessor, err
}

// patch applies a strategic merge patch to object; also a merge patch, for fields that are not lists.
func patch(object runtime.Object, body []byte) (runtime.Object, error) {
	before, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	after, err := strategicpatch.StrategicMergePatch(before, body, object)
	if err != nil {
		return nil, err
	}
	changed := reflect.New(reflect.TypeOf(object).Elem()).Interface().(runtime.Object)
	return changed, json.Unmarshal(after, changed)
}
