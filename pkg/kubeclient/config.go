// Package kubeclient is the agent's client of the API server: it turns a kubeconfig into a client, watches the objects that this node's
// pods refer to, and writes statuses and Events.
//
//	API server --watches filtered to this node--> Objects --> pod
//	pod.Status --> StatusWriter --patch--> API server
//
// It requests only what upstream's Node authorizer and NodeRestriction allow a node.
package kubeclient

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/clientset"
)

// Options says how to reach the API server. Exactly one of Kubeconfig and Server must be set.
type Options struct {
	Kubeconfig  string  // path of a kubeconfig file
	Server      string  // "https://host:port", "http://host:port" or "host:port" (plain); of a comma-separated list, the first
	UserAgent   string  // "": client-go's default
	QPS         float32 // requests per second; 0: client-go's 5, negative: no limit
	Burst       int     // 0: client-go's 10
	ContentType string  // "": application/vnd.kubernetes.protobuf
}

// Config returns a client configuration. An error names the file or value and the problem, in one line.
func Config(o Options) (*rest.Config, error) {
	var config *rest.Config
	var err error
	switch {
	case o.Kubeconfig != "" && o.Server != "":
		return nil, fmt.Errorf("API server %q and kubeconfig %q are both set: want only one of them", o.Server, o.Kubeconfig)
	case o.Kubeconfig != "":
		config, err = fromFile(o.Kubeconfig)
	case o.Server != "":
		config, err = fromServer(o.Server)
	default:
		return nil, fmt.Errorf("no API server: a kubeconfig file or the URL of the API server must be given")
	}
	if err != nil {
		return nil, err
	}
	config.UserAgent, config.QPS, config.Burst = o.UserAgent, o.QPS, o.Burst
	config.ContentType = o.ContentType
	if config.ContentType == "" {
		config.ContentType = "application/vnd.kubernetes.protobuf"
	}
	config.AcceptContentTypes = config.ContentType + ",application/json"
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return reconnect{next: next, after: time.After} })
	return config, nil
}

func fromFile(path string) (*rest.Config, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("cannot read kubeconfig: %w", err)
	}
	file, err := clientcmd.LoadFromFile(path)
	if err == nil {
		err = checkUser(file)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot use kubeconfig %s: %s", path, oneLine(err))
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("cannot use kubeconfig %s: %s", path, oneLine(err))
	}
	// Check now what clientcmd leaves to the first connection: certificates must be readable and match their keys.
	if _, err := rest.TransportFor(config); err != nil {
		return nil, fmt.Errorf("cannot use kubeconfig %s: %s", path, oneLine(err))
	}
	if strings.HasPrefix(config.Host, "http://") {
		klog.InfoS("Warning: the connection to the API server is not encrypted", "kubeconfig", path, "server", config.Host)
	}
	return config, nil
}

// checkUser finds a user that the current context names but the file lacks: clientcmd would continue without credentials.
func checkUser(file *clientcmdapi.Config) error {
	current := file.Contexts[file.CurrentContext]
	if current == nil || current.AuthInfo == "" || file.AuthInfos[current.AuthInfo] != nil {
		return nil
	}
	return fmt.Errorf("context %q names user %q, which the file does not have", file.CurrentContext, current.AuthInfo)
}

func fromServer(server string) (*rest.Config, error) {
	first, _, more := strings.Cut(server, ",")
	first = strings.TrimSpace(first)
	full := first
	if !strings.Contains(first, "://") {
		full = "http://" + first
	}
	u, err := url.Parse(full)
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("API server %q: must be https://host:port, http://host:port or host:port", first)
	}
	if more {
		klog.InfoS("Several API servers given; the first is used", "server", full)
	}
	if u.Scheme == "http" {
		klog.InfoS("Warning: the connection to the API server is neither encrypted nor authenticated", "server", full)
	}
	return &rest.Config{Host: full}, nil
}

// Events returns a recorder of core/v1 Events from component on nodeName. client-go's correlator aggregates and limits Events, and limit
// bounds the rate of sending. Recording never blocks. stop ends the recorder and drops unsent Events.
func Events(client clientset.Interface, component, nodeName string, limit EventLimit) (recorder record.EventRecorder, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	var sink record.EventSink = &uniqueSink{EventSink: &eventSink{ctx, client}}
	if limit.QPS > 0 {
		sink = &slowSink{sink, ctx, flowcontrol.NewTokenBucketRateLimiter(limit.QPS, max(limit.Burst, 1))}
	}
	broadcaster.StartRecordingToSink(sink)
	if klog.V(3).Enabled() { // otherwise each Event would wake a goroutine needlessly
		broadcaster.StartStructuredLogging(3)
	}
	return broadcaster.NewRecorder(clientset.Scheme, v1.EventSource{Component: component, Host: nodeName}), func() { cancel(); broadcaster.Shutdown() }
}

// eventSink writes to the namespace of each Event.
type eventSink struct {
	ctx    context.Context
	client clientset.Interface
}

// Create implements record.EventSink.
func (s *eventSink) Create(event *v1.Event) (*v1.Event, error) {
	return s.client.Events(event.Namespace).Create(s.ctx, event, metav1.CreateOptions{})
}

// Update implements record.EventSink.
func (s *eventSink) Update(event *v1.Event) (*v1.Event, error) {
	return s.client.Events(event.Namespace).Update(s.ctx, event, metav1.UpdateOptions{})
}

// Patch implements record.EventSink.
func (s *eventSink) Patch(event *v1.Event, data []byte) (*v1.Event, error) {
	return s.client.Events(event.Namespace).Patch(s.ctx, event.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{})
}

// EventLimit is the maximum rate of Events: QPS per second, with bursts up to Burst. QPS 0: no limit.
type EventLimit struct {
	QPS   float32
	Burst int
}

// slowSink sends no faster than its limiter allows. Meanwhile up to a thousand Events wait (client-go, tools/record).
type slowSink struct {
	record.EventSink
	ctx     context.Context
	limiter flowcontrol.RateLimiter
}

// Create implements record.EventSink.
func (s *slowSink) Create(event *v1.Event) (*v1.Event, error) {
	if err := s.limiter.Wait(s.ctx); err != nil {
		return nil, err
	}
	return s.EventSink.Create(event)
}

// Update implements record.EventSink.
func (s *slowSink) Update(event *v1.Event) (*v1.Event, error) {
	if err := s.limiter.Wait(s.ctx); err != nil {
		return nil, err
	}
	return s.EventSink.Update(event)
}

// Patch implements record.EventSink.
func (s *slowSink) Patch(event *v1.Event, data []byte) (*v1.Event, error) {
	if err := s.limiter.Wait(s.ctx); err != nil {
		return nil, err
	}
	return s.EventSink.Patch(event, data)
}

// uniqueSink gives Events unique names. client-go names an Event by its object and the time in nanoseconds, but Windows' clock advances in
// steps of 0.5 to 16 ms. If two Events about one object occur within a step, the API server would refuse the second, and its repetitions
// would overwrite the first. Only one goroutine, the broadcaster's, may use it.
type uniqueSink struct {
	record.EventSink
	recent [32]string // names of the latest created Events
	next   int
}

// Create implements record.EventSink.
func (s *uniqueSink) Create(event *v1.Event) (*v1.Event, error) {
	if base := event.Name; slices.Contains(s.recent[:], event.Namespace+"/"+base) {
		event = event.DeepCopy()
		for n := 1; slices.Contains(s.recent[:], event.Namespace+"/"+event.Name); n++ {
			event.Name = fmt.Sprintf("%s.%d", base, n)
		}
	}
	created, err := s.EventSink.Create(event)
	if err == nil {
		s.recent[s.next] = event.Namespace + "/" + event.Name
		s.next = (s.next + 1) % len(s.recent)
	}
	return created, err
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }
