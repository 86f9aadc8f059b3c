package server

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"
)

// serveLogs answers /containerLogs. Errors before the first byte set the status, later ones end the text.
func (s *Server) serveLogs(w http.ResponseWriter, r *http.Request) {
	options, err := decodeLogOptions(r.URL.Query())
	if err != nil {
		plain(w, http.StatusBadRequest, message("Unable to decode query: %v", err))
		return
	}
	if err := validateLogOptions(options); err != nil {
		plain(w, http.StatusUnprocessableEntity, message("Invalid request: %v", err))
		return
	}
	podName, containerName := r.PathValue("pod"), r.PathValue("container")
	ref, ok := s.parts.Pods.Lookup(r.PathValue("namespace"), podName, "", containerName)
	if !ok {
		plain(w, http.StatusNotFound, fmt.Sprintf("pod %q does not exist", podName))
		return
	}
	if containerSpec(ref.Pod, containerName) == nil {
		plain(w, http.StatusNotFound, fmt.Sprintf("container %q not found in pod %q", containerName, podName))
		return
	}
	id, err := logSource(ref.Pod, containerName, options.Previous)
	if err != nil {
		plain(w, http.StatusBadRequest, err.Error())
		return
	}
	options.Container = containerName
	out := &logWriterTo{w: w, control: http.NewResponseController(w), follow: options.Follow, idle: s.config.StreamIdleTimeout}
	var stdout, stderr io.Writer
	if *options.Stream != v1.LogStreamStderr {
		stdout = out
	}
	if *options.Stream != v1.LogStreamStdout {
		stderr = out
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if options.Follow {
		_, _ = out.Write(nil) // sends the header while we wait for lines
	}
	if err := s.parts.Engine.Logs(r.Context(), id, options, stdout, stderr); err != nil && r.Context().Err() == nil {
		klog.ErrorS(err, "Cannot read a container's log", "pod", klog.KObj(ref.Pod), "container", containerName)
		if !out.begun {
			plain(w, http.StatusBadRequest, err.Error())
			return
		}
		_, _ = out.Write([]byte(err.Error()))
	}
}

// logWriterTo sends lines to the client; with follow it flushes each one. It disconnects a client that receives nothing for the idle time.
type logWriterTo struct {
	w       io.Writer
	control *http.ResponseController
	follow  bool
	idle    time.Duration

	mu    sync.Mutex // stdout and stderr may be written by two goroutines
	begun bool
}

func (l *logWriterTo) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun = true
	_ = l.control.SetWriteDeadline(time.Now().Add(l.idle)) // net.Conn uses the machine's clock
	n, err := l.w.Write(line)
	if err == nil && l.follow {
		err = l.control.Flush()
	}
	return n, err
}

// decodeLogOptions parses the query parameters of v1.PodLogOptions as the API server does, and the older "tail" (a number or "all").
func decodeLogOptions(query url.Values) (*v1.PodLogOptions, error) {
	if tail := query.Get("tail"); tail == "all" {
		query.Del("tailLines")
	} else if tail != "" {
		query.Set("tailLines", tail)
	}
	options := &v1.PodLogOptions{}
	for name, field := range map[string]*bool{"follow": &options.Follow, "previous": &options.Previous, "timestamps": &options.Timestamps} {
		values := query[name]
		_ = runtime.Convert_Slice_string_To_bool(&values, field, nil) // any value except "0" and "false" is true
	}
	for _, number := range []struct {
		name  string
		field **int64
	}{{"sinceSeconds", &options.SinceSeconds}, {"tailLines", &options.TailLines}, {"limitBytes", &options.LimitBytes}} {
		values := query[number.name]
		if err := runtime.Convert_Slice_string_To_Pointer_int64(&values, number.field, nil); err != nil {
			return nil, fmt.Errorf("%s is %q, want a whole number", number.name, values[0])
		}
	}
	if values := query["sinceTime"]; len(values) > 0 {
		if err := metav1.Convert_Slice_string_To_Pointer_v1_Time(&values, &options.SinceTime, nil); err != nil {
			return nil, fmt.Errorf("sinceTime is %q, want a time as in RFC 3339", values[0])
		}
	}
	stream := v1.LogStreamAll
	if values := query["stream"]; len(values) > 0 {
		stream = values[0]
	}
	options.Stream = &stream
	return options, nil
}

// validateLogOptions enforces the API's rules for v1.PodLogOptions.
func validateLogOptions(options *v1.PodLogOptions) error {
	switch {
	case options.TailLines != nil && *options.TailLines < 0:
		return fmt.Errorf("tailLines is %d, want 0 or more", *options.TailLines)
	case options.LimitBytes != nil && *options.LimitBytes < 1:
		return fmt.Errorf("limitBytes is %d, want 1 or more", *options.LimitBytes)
	case options.SinceSeconds != nil && options.SinceTime != nil:
		return fmt.Errorf("sinceSeconds and sinceTime are both given, want at most one")
	case options.SinceSeconds != nil && *options.SinceSeconds < 1:
		return fmt.Errorf("sinceSeconds is %d, want 1 or more", *options.SinceSeconds)
	case !slices.Contains([]string{v1.LogStreamAll, v1.LogStreamStdout, v1.LogStreamStderr}, *options.Stream):
		return fmt.Errorf("stream is %q, want All, Stdout or Stderr", *options.Stream)
	case *options.Stream != v1.LogStreamAll && options.TailLines != nil:
		return fmt.Errorf("tailLines is given with stream %s, want it with All only", *options.Stream)
	}
	return nil
}

// message wraps an error in JSON, as upstream does only for this path.
func message(format string, args ...any) string {
	text, _ := json.Marshal(map[string]string{"message": fmt.Sprintf(format, args...)}) // strings cannot fail
	return string(text)
}

// logSource chooses the container for a log request: the running one, otherwise the last one. It uses the status, which is what users see, and its
// errors explain a missing log in upstream's words.
func logSource(pod *v1.Pod, name string, previous bool) (id string, err error) {
	status := containerStatus(pod, name)
	if status == nil {
		return "", fmt.Errorf("container %q in pod %q is not available", name, pod.Name)
	}
	state, last := status.State, status.LastTerminationState.Terminated
	switch {
	case previous:
		if last == nil || last.ContainerID == "" {
			return "", fmt.Errorf("previous terminated container %q in pod %q not found", name, pod.Name)
		}
		id = last.ContainerID
	case state.Running != nil:
		id = status.ContainerID
	case state.Terminated != nil && state.Terminated.ContainerID != "":
		id = state.Terminated.ContainerID
	case last != nil && last.ContainerID != "":
		id = last.ContainerID
	case state.Terminated != nil || last != nil:
		return "", fmt.Errorf("container %q in pod %q is terminated", name, pod.Name)
	case state.Waiting != nil:
		why := state.Waiting.Reason
		switch why {
		case "ErrImagePull":
			why = "image can't be pulled"
		case "ImagePullBackOff":
			why = "trying and failing to pull image"
		}
		return "", fmt.Errorf("container %q in pod %q is waiting to start: %s", name, pod.Name, why)
	default:
		return "", fmt.Errorf("container %q in pod %q is waiting to start - no logs yet", name, pod.Name)
	}
	if _, after, found := strings.Cut(id, "://"); found { // docker://ID
		id = after
	}
	if id == "" { // it runs, but its id is not in the status yet
		return "", fmt.Errorf("container %q in pod %q is not available", name, pod.Name)
	}
	return id, nil
}

func containerStatus(pod *v1.Pod, name string) *v1.ContainerStatus {
	for _, list := range [][]v1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

// containerSpec finds a container of any kind; an ephemeral one is converted by the fields that both types share.
func containerSpec(pod *v1.Pod, name string) *v1.Container {
	for _, list := range [][]v1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if pod.Spec.EphemeralContainers[i].Name == name {
			spec := v1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
			return &spec
		}
	}
	return nil
}
