package apiserver

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/winkube/winkube/pkg/wake"
)

// place is what a path refers to: a resource, or one of its objects.
type place struct {
	kind      schema.GroupVersionKind
	namespace string
	name      string // "": all objects of the resource
}

func (p place) kindKey() string { return p.kind.GroupVersion().String() + " " + p.kind.Kind }

func (p place) key() string { return p.kindKey() + " " + p.namespace + "/" + p.name }

// parse parses a path such as /apis/GROUP/VERSION/namespaces/NAMESPACE/RESOURCE/NAME/status.
func parse(path string) (place, error) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	var gv schema.GroupVersion
	switch {
	case len(parts) > 2 && parts[0] == "api":
		gv, parts = schema.GroupVersion{Version: parts[1]}, parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		gv, parts = schema.GroupVersion{Group: parts[1], Version: parts[2]}, parts[3:]
	default:
		return place{}, fmt.Errorf("%s is no path of a resource", path)
	}
	var p place
	if len(parts) > 2 && parts[0] == "namespaces" {
		p.namespace, parts = parts[1], parts[2:]
	}
	if len(parts) > 1 {
		p.name = parts[1]
	}
	if len(parts) > 2 && parts[2] != "status" {
		return place{}, fmt.Errorf("%s is a subresource that is not served", path)
	}
	for kind := range scheme.Scheme.KnownTypes(gv) {
		p.kind = gv.WithKind(kind)
		if plural, _ := meta.UnsafeGuessKindToResource(p.kind); plural.Resource == parts[0] {
			return p, nil
		}
	}
	return place{}, fmt.Errorf("client-go has no resource %s of %s", parts[0], gv)
}

// placeOf returns an object's place.
func placeOf(object runtime.Object) (place, error) {
	kind, err := typeOf(object)
	if err != nil {
		return place{}, err
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return place{}, err
	}
	return place{kind: kind, namespace: accessor.GetNamespace(), name: accessor.GetName()}, nil
}

func typeOf(object runtime.Object) (schema.GroupVersionKind, error) {
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		return schema.GroupVersionKind{}, err
	}
	return kinds[0], nil
}

// watch streams changes. On request it first sends the existing objects and the bookmark that ends them (KEP-3157), or
// the changes since a version.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, of place) {
	self := &watch{more: wake.New()}
	s.mu.Lock()
	err := s.begin(self, r, of)
	if err == nil {
		s.watches[self] = of.kindKey()
	}
	s.mu.Unlock()
	if err != nil {
		refuse(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, err.Error())
		return
	}
	defer func() {
		s.mu.Lock()
		delete(s.watches, self)
		s.mu.Unlock()
	}()
	form := s.form.MediaType
	if form == Protobuf {
		form += ";stream=watch"
	}
	w.Header().Set("Content-Type", form)
	w.WriteHeader(http.StatusOK)
	for {
		s.mu.Lock()
		events := self.events
		self.events = nil
		s.mu.Unlock()
		for _, event := range events {
			_, _ = w.Write(event)
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		select {
		case <-self.more:
		case <-r.Context().Done():
			return
		}
	}
}

// begin queues a new watch's first events; s.mu is held.
func (s *Server) begin(self *watch, r *http.Request, of place) error {
	resource, query := of.kindKey(), r.URL.Query()
	if query.Get("sendInitialEvents") == "true" {
		for _, e := range s.order[resource] {
			self.events = append(self.events, e.added)
		}
		bookmark, err := s.bookmark(of)
		self.events = append(self.events, bookmark)
		return err
	}
	since, err := strconv.Atoi(query.Get("resourceVersion"))
	if err != nil || s.Silent {
		return nil // only future changes
	}
	for _, e := range s.order[resource] {
		if e.revision > since {
			event, err := s.event("MODIFIED", e.data)
			if err != nil {
				return err
			}
			self.events = append(self.events, event)
		}
	}
	for _, d := range s.deleted {
		if d.resource == resource && d.revision > since {
			self.events = append(self.events, d.event)
		}
	}
	return nil
}

// bookmark returns the event that marks the end of the existing objects.
func (s *Server) bookmark(of place) ([]byte, error) {
	object, err := scheme.Scheme.New(of.kind)
	if err != nil {
		return nil, err
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	accessor.SetResourceVersion(strconv.Itoa(s.revision))
	accessor.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	data, err := s.encode(object)
	if err != nil {
		return nil, err
	}
	return s.event("BOOKMARK", data)
}
