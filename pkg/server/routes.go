package server

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
)

const (
	container    = "/{namespace}/{pod}/{container}"
	containerUID = "/{namespace}/{pod}/{uid}/{container}"
	somePod      = "/{namespace}/{pod}"
	somePodUID   = "/{namespace}/{pod}/{uid}"
)

// debugging are the paths that enableDebuggingHandlers controls and that report it if it is off.
var debugging = []string{"/run/", "/exec/", "/attach/", "/portForward/", "/containerLogs/", "/runningpods/", "/debug/pprof/", "/logs/"}

// routes returns the handler of all paths of the API.
func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	s.checks.install(mux)
	mux.HandleFunc("GET /pods", s.servePods)
	mux.HandleFunc("GET /pods/{$}", s.servePods)
	for path, handler := range map[string]http.Handler{
		"/metrics":          s.parts.Metrics,
		"/metrics/cadvisor": s.parts.MetricsCadvisor,
		"/metrics/probes":   s.parts.MetricsProbes,
		"/metrics/resource": s.parts.MetricsResource,
		"/stats/summary":    s.parts.StatsSummary,
	} {
		if handler != nil {
			mux.Handle(path, handler)
		}
	}
	if !s.config.Debugging {
		for _, path := range debugging {
			mux.HandleFunc(path, disabled("Debug endpoints are disabled."))
		}
		return mux
	}
	for _, method := range []string{"GET ", "POST "} { // a WebSocket starts with GET, SPDY with POST
		mux.HandleFunc(method+"/exec"+container, s.serveExec)
		mux.HandleFunc(method+"/exec"+containerUID, s.serveExec)
		mux.HandleFunc(method+"/attach"+container, s.serveAttach)
		mux.HandleFunc(method+"/attach"+containerUID, s.serveAttach)
		mux.HandleFunc(method+"/portForward"+somePod, s.servePortForward)
		mux.HandleFunc(method+"/portForward"+somePodUID, s.servePortForward)
	}
	mux.HandleFunc("POST /run"+container, s.serveRun)
	mux.HandleFunc("POST /run"+containerUID, s.serveRun)
	mux.HandleFunc("GET /containerLogs"+container, s.serveLogs)
	mux.HandleFunc("GET /runningpods", s.serveRunningPods)
	mux.HandleFunc("GET /runningpods/{$}", s.serveRunningPods)
	if s.parts.Configz != nil {
		mux.HandleFunc("/configz", s.serveConfigz)
	}
	if s.parts.DebugPods != nil {
		mux.Handle("GET /debug/pods", s.parts.DebugPods)
	}
	if s.parts.NodeLogs != nil {
		mux.Handle("GET /logs/", s.parts.NodeLogs)
	}
	if s.config.Profiling {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	} else {
		mux.HandleFunc("/debug/pprof/", disabled("profiling endpoint is disabled."))
	}
	if s.config.DebugFlags {
		mux.HandleFunc("/debug/flags/v", serveVerbosity)
	} else {
		mux.HandleFunc("/debug/flags/v", disabled("flags endpoint is disabled."))
	}
	return mux
}

// lookup finds the pod of a request's path. If there is none, it answers 404.
func (s *Server) lookup(w http.ResponseWriter, r *http.Request) (Ref, bool) {
	ref, ok := s.parts.Pods.Lookup(r.PathValue("namespace"), r.PathValue("pod"), types.UID(r.PathValue("uid")), r.PathValue("container"))
	if !ok {
		plain(w, http.StatusNotFound, "pod does not exist")
	}
	return ref, ok
}

func (s *Server) servePods(w http.ResponseWriter, _ *http.Request) {
	list := podList()
	for _, pod := range s.parts.Pods.Pods() {
		list.Items = append(list.Items, *pod)
	}
	writeJSON(w, list)
}

// serveRunningPods lists the engine's running pods, whether or not they belong to this node's Pods.
func (s *Server) serveRunningPods(w http.ResponseWriter, r *http.Request) {
	if s.parts.Observer == nil {
		http.NotFound(w, r)
		return
	}
	observed, err := s.parts.Observer.ObserveAll(r.Context())
	if err != nil {
		plain(w, http.StatusInternalServerError, err.Error())
		return
	}
	list := podList()
	for uid, pod := range observed {
		if running, ok := runningPod(uid, pod); ok {
			list.Items = append(list.Items, running)
		}
	}
	slices.SortFunc(list.Items, func(a, b v1.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name+"/"+string(a.UID), b.Namespace+"/"+b.Name+"/"+string(b.UID))
	})
	writeJSON(w, list)
}

// runningPod describes a pod from the engine's data only; false if none of its containers runs.
func runningPod(uid types.UID, observed pod.Observed) (v1.Pod, bool) {
	running := v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: observed.Namespace, Name: observed.Name, UID: uid}}
	for _, c := range observed.Containers {
		if c.State == pod.Running {
			running.Spec.Containers = append(running.Spec.Containers, v1.Container{Name: c.Name, Image: c.Image})
		}
	}
	sandboxed := slices.ContainsFunc(observed.Sandboxes, func(sandbox pod.Sandbox) bool { return sandbox.Running })
	return running, sandboxed || len(running.Spec.Containers) > 0
}

func podList() v1.PodList {
	return v1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, Items: []v1.Pod{}}
}

func (s *Server) serveConfigz(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, map[string]any{"kubeletconfig": s.parts.Configz})
}

// serveVerbosity sets klog's -v to the number in the body.
func serveVerbosity(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPut {
		plain(w, http.StatusNotAcceptable, "unsupported http method\n")
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64))
	if err != nil {
		plain(w, http.StatusBadRequest, fmt.Sprintf("error reading request body: %v\n", err))
		return
	}
	var level klog.Level
	if err := level.Set(string(body)); err != nil {
		plain(w, http.StatusBadRequest, fmt.Sprintf("failed set klog.logging.verbosity %q, want a number: %v\n", body, err))
		return
	}
	plain(w, http.StatusOK, fmt.Sprintf("successfully set klog.logging.verbosity to %s\n", body))
}

func disabled(message string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, message, http.StatusMethodNotAllowed) }
}

// plain answers with exactly text, since clients show it to people.
func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text)
}

func writeJSON(w http.ResponseWriter, value any) {
	data, err := json.Marshal(value)
	if err != nil {
		plain(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data)
}
