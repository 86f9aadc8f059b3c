package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

const protobufType = "application/vnd.kubernetes.protobuf"

// api is as much of an API server as a service proxy asks of it, in protobuf: lists, watches that begin with what exists (KEP-3157) and
// go on with changes, and single Nodes. Objects are encoded once.
type api struct {
	mu      sync.Mutex
	version int
	objects map[string][][]byte // by resource
	watches map[string]map[chan []byte]struct{}
	node    []byte
	info    runtime.SerializerInfo
}

func newAPI() (*api, error) {
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), protobufType)
	if !ok {
		return nil, fmt.Errorf("client-go does not know %s", protobufType)
	}
	return &api{version: 1, objects: map[string][][]byte{}, watches: map[string]map[chan []byte]struct{}{}, info: info}, nil
}

func (a *api) encode(object runtime.Object, group schema.GroupVersion) ([]byte, error) {
	var out bytes.Buffer
	err := scheme.Codecs.EncoderForVersion(a.info.Serializer, group).Encode(object, &out)
	return out.Bytes(), err
}

// frame is an event as the stream of a watch has it.
func (a *api) frame(kind string, object []byte) ([]byte, error) {
	var out bytes.Buffer
	stream := a.info.StreamSerializer
	encoder := scheme.Codecs.EncoderForVersion(stream.Serializer, v1.SchemeGroupVersion)
	err := encoder.Encode(&metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: object}}, stream.NewFrameWriter(&out))
	return out.Bytes(), err
}

// add takes an object that exists from the start.
func (a *api) add(resource string, object runtime.Object, group schema.GroupVersion) error {
	data, err := a.encode(object, group)
	if err != nil {
		return err
	}
	frame, err := a.frame("ADDED", data)
	a.objects[resource] = append(a.objects[resource], frame)
	if _, ok := object.(*v1.Node); ok {
		a.node = data
	}
	return err
}

// change tells every watch of slices that one has changed; what exists from the start stays as it is.
func (a *api) change(slice *discovery.EndpointSlice) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.version++
	slice.ResourceVersion = strconv.Itoa(a.version)
	data, err := a.encode(slice, discovery.SchemeGroupVersion)
	if err != nil {
		return err
	}
	frame, err := a.frame("MODIFIED", data)
	for watch := range a.watches["endpointslices"] {
		watch <- frame
	}
	return err
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	switch {
	case r.Method != http.MethodGet: // events
		_, _ = io.Copy(w, r.Body)
	case resource == nodeName:
		w.Header().Set("Content-Type", protobufType)
		_, _ = w.Write(a.node)
	case r.URL.Query().Get("watch") != "":
		a.watch(w, r, resource)
	default:
		// A list is asked for by who cannot begin with a watch; both of ours can.
		w.WriteHeader(http.StatusNotFound)
	}
}

func (a *api) watch(w http.ResponseWriter, r *http.Request, resource string) {
	w.Header().Set("Content-Type", protobufType+";stream=watch")
	changes := make(chan []byte, 1000)
	a.mu.Lock()
	if a.watches[resource] == nil {
		a.watches[resource] = map[chan []byte]struct{}{}
	}
	a.watches[resource][changes] = struct{}{}
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.watches[resource], changes)
		a.mu.Unlock()
	}()
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		for _, frame := range a.objects[resource] {
			_, _ = w.Write(frame)
		}
		end, err := a.bookmark(resource)
		if err != nil {
			return
		}
		_, _ = w.Write(end)
	}
	for {
		if err := http.NewResponseController(w).Flush(); err != nil {
			return
		}
		select {
		case frame := <-changes:
			_, _ = w.Write(frame)
		case <-r.Context().Done():
			return
		}
	}
}

// bookmark ends what exists from the start.
func (a *api) bookmark(resource string) ([]byte, error) {
	meta := metav1.ObjectMeta{ResourceVersion: "1", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}
	var object runtime.Object = &v1.Service{ObjectMeta: meta}
	group := v1.SchemeGroupVersion
	switch resource {
	case "nodes":
		object = &v1.Node{ObjectMeta: meta}
	case "endpointslices":
		object, group = &discovery.EndpointSlice{ObjectMeta: meta}, discovery.SchemeGroupVersion
	case "servicecidrs":
		object, group = &networking.ServiceCIDR{ObjectMeta: meta}, networking.SchemeGroupVersion
	case "services":
	default:
		return nil, fmt.Errorf("nobody should watch %s", resource)
	}
	data, err := a.encode(object, group)
	if err != nil {
		return nil, err
	}
	return a.frame("BOOKMARK", data)
}
