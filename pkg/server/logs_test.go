package server

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDecodeLogOptions(t *testing.T) {
	for _, test := range []struct{ query, want string }{
		{"", `{"stream":"All"}`},
		{"follow=true&previous=1&timestamps=", `{"follow":true,"previous":true,"timestamps":true,"stream":"All"}`},
		{"follow=0&previous=False", `{"stream":"All"}`},
		{"tailLines=5&limitBytes=10&sinceSeconds=3", `{"sinceSeconds":3,"tailLines":5,"limitBytes":10,"stream":"All"}`},
		{"tail=7", `{"tailLines":7,"stream":"All"}`},
		{"tail=all&tailLines=7", `{"stream":"All"}`},
		{"sinceTime=2026-01-02T03:04:05Z", `{"sinceTime":"2026-01-02T03:04:05Z","stream":"All"}`},
		{"stream=Stderr", `{"stream":"Stderr"}`},
		{"tailLines=0", `{"tailLines":0,"stream":"All"}`},

		{"tailLines=x", `decode: tailLines is "x", want a whole number`},
		{"sinceSeconds=99999999999999999999", `decode: sinceSeconds is "99999999999999999999", want a whole number`},
		{"limitBytes=", `decode: limitBytes is "", want a whole number`},
		{"sinceTime=yesterday", `decode: sinceTime is "yesterday", want a time as in RFC 3339`},

		{"tailLines=-1", `validate: tailLines is -1, want 0 or more`},
		{"limitBytes=0", `validate: limitBytes is 0, want 1 or more`},
		{"sinceSeconds=0", `validate: sinceSeconds is 0, want 1 or more`},
		{"sinceSeconds=1&sinceTime=2026-01-02T03:04:05Z", `validate: sinceSeconds and sinceTime are both given, want at most one`},
		{"stream=stdout", `validate: stream is "stdout", want All, Stdout or Stderr`},
		{"stream=Stdout&tailLines=1", `validate: tailLines is given with stream Stdout, want it with All only`},
	} {
		query, err := url.ParseQuery(test.query)
		if err != nil {
			t.Fatal(err)
		}
		if got := describe(query); got != test.want {
			t.Errorf("%s\n got %s\nwant %s", test.query, got, test.want)
		}
	}
}

func describe(query url.Values) string {
	options, err := decodeLogOptions(query)
	if err != nil {
		return "decode: " + err.Error()
	}
	if err := validateLogOptions(options); err != nil {
		return "validate: " + err.Error()
	}
	text, _ := json.Marshal(options)
	return string(text)
}

// FuzzLogQuery: no query passes validation with options that an engine cannot honor, and none panics.
func FuzzLogQuery(f *testing.F) {
	for _, query := range []string{"", "tail=all", "tail=-3&follow", "sinceTime=0001-01-01T00:00:00Z", "stream=All&stream=x", "limitBytes=9223372036854775807", "%zz=1", "tailLines=%00"} {
		f.Add(query)
	}
	f.Fuzz(func(t *testing.T, text string) {
		query, _ := url.ParseQuery(text) // a request's query is decoded as far as possible
		options, err := decodeLogOptions(query)
		if err != nil || validateLogOptions(options) != nil {
			return
		}
		if options.Stream == nil || options.TailLines != nil && *options.TailLines < 0 || options.LimitBytes != nil && *options.LimitBytes < 1 ||
			options.SinceSeconds != nil && (*options.SinceSeconds < 1 || options.SinceTime != nil) {
			t.Errorf("%q is accepted as %+v", text, options)
		}
	})
}

func TestLogSource(t *testing.T) {
	done := func(id string) *v1.ContainerStateTerminated { return &v1.ContainerStateTerminated{ContainerID: id} }
	waiting := func(reason string) v1.ContainerState {
		return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}
	}
	running := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	for _, test := range []struct {
		name     string
		status   v1.ContainerStatus
		previous bool
		want     string
	}{
		{"running", v1.ContainerStatus{ContainerID: "docker://2", State: running}, false, "2"},
		{"running, previous", v1.ContainerStatus{ContainerID: "docker://2", State: running, LastTerminationState: v1.ContainerState{Terminated: done("docker://1")}}, true, "1"},
		{"running, no previous", v1.ContainerStatus{ContainerID: "docker://2", State: running}, true, `previous terminated container "c" in pod "p" not found`},
		{"running, not reported yet", v1.ContainerStatus{State: running}, false, `container "c" in pod "p" is not available`},
		{"exited", v1.ContainerStatus{State: v1.ContainerState{Terminated: done("docker://3")}}, false, "3"},
		{"exited without a container, one before", v1.ContainerStatus{State: v1.ContainerState{Terminated: done("")}, LastTerminationState: v1.ContainerState{Terminated: done("docker://1")}}, false, "1"},
		{"exited without a container", v1.ContainerStatus{State: v1.ContainerState{Terminated: done("")}}, false, `container "c" in pod "p" is terminated`},
		{"crash loop", v1.ContainerStatus{State: waiting("CrashLoopBackOff"), LastTerminationState: v1.ContainerState{Terminated: done("docker://4")}}, false, "4"},
		{"crash loop, previous", v1.ContainerStatus{State: waiting("CrashLoopBackOff"), LastTerminationState: v1.ContainerState{Terminated: done("docker://4")}}, true, "4"},
		{"crash loop, container gone", v1.ContainerStatus{State: waiting("CrashLoopBackOff"), LastTerminationState: v1.ContainerState{Terminated: done("")}}, false, `container "c" in pod "p" is terminated`},
		{"creating", v1.ContainerStatus{State: waiting("ContainerCreating")}, false, `container "c" in pod "p" is waiting to start: ContainerCreating`},
		{"no image", v1.ContainerStatus{State: waiting("ErrImagePull")}, false, `container "c" in pod "p" is waiting to start: image can't be pulled`},
		{"image back-off", v1.ContainerStatus{State: waiting("ImagePullBackOff")}, false, `container "c" in pod "p" is waiting to start: trying and failing to pull image`},
		{"no state", v1.ContainerStatus{}, false, `container "c" in pod "p" is waiting to start - no logs yet`},
	} {
		test.status.Name = "c"
		for kind, status := range map[string]v1.PodStatus{
			"app":       {ContainerStatuses: []v1.ContainerStatus{test.status}},
			"init":      {InitContainerStatuses: []v1.ContainerStatus{test.status}},
			"ephemeral": {EphemeralContainerStatuses: []v1.ContainerStatus{test.status}},
		} {
			got, err := logSource(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Status: status}, "c", test.previous)
			if err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("%s (%s): got %q, want %q", test.name, kind, got, test.want)
			}
		}
	}
	if _, err := logSource(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, "c", false); err == nil || err.Error() != `container "c" in pod "p" is not available` {
		t.Errorf("no status: %v", err)
	}
}

func TestLogs(t *testing.T) {
	r := newRig(t, nil)
	for _, test := range []struct {
		path   string
		status int
		body   string
	}{
		{"/containerLogs/default/web/main", 200, "to stdout\nto stderr\n"},
		{"/containerLogs/default/web/main?stream=Stdout", 200, "to stdout\n"},
		{"/containerLogs/default/web/main?stream=Stderr", 200, "to stderr\n"},
		{"/containerLogs/default/web/main?tailLines=ten", 400, `{"message":"Unable to decode query: tailLines is \"ten\", want a whole number"}`},
		{"/containerLogs/default/web/main?tailLines=-1", 422, `{"message":"Invalid request: tailLines is -1, want 0 or more"}`},
		{"/containerLogs/default/nothing/main", 404, `pod "nothing" does not exist`},
		{"/containerLogs/other/web/main", 404, `pod "web" does not exist`},
		{"/containerLogs/default/web/nothing", 404, `container "nothing" not found in pod "web"`},
		{"/containerLogs/default/waiting/main", 400, `container "main" in pod "waiting" is waiting to start: ContainerCreating`},
		{"/containerLogs/default/web/main?previous=true", 400, `previous terminated container "main" in pod "web" not found`},
		{"/containerLogs/default/web/setup", 400, "no such container: id-setup"},
		{"/containerLogs/default/web/", 404, "404 page not found\n"},
	} {
		if status, body := r.get("GET", test.path, ""); status != test.status || body != test.body {
			t.Errorf("%s: got %d %q, want %d %q", test.path, status, body, test.status, test.body)
		}
	}
	r.get("GET", "/containerLogs/default/web/main?timestamps=1&sinceSeconds=5&limitBytes=9", "")
	if seen := r.engine.seen; !seen.Timestamps || *seen.SinceSeconds != 5 || *seen.LimitBytes != 9 || seen.Container != "main" {
		t.Errorf("the engine was asked for %+v", seen)
	}
}

// follow opens a followed log and returns its lines.
func follow(ctx context.Context, r *rig) (*bufio.Scanner, error) {
	request, err := http.NewRequestWithContext(ctx, "GET", "https://"+r.server.Addr().String()+"/containerLogs/default/web/main?follow=true", nil)
	if err != nil {
		return nil, err
	}
	response, err := r.http(r.as("root")).Do(request)
	if err != nil {
		return nil, err
	}
	r.t.Cleanup(func() { response.Body.Close() })
	if response.StatusCode != 200 {
		return nil, fmt.Errorf("status %s", response.Status)
	}
	return bufio.NewScanner(response.Body), nil
}

func TestLogsFollow(t *testing.T) {
	r := newRig(t, nil)
	ctx, leave := context.WithCancel(t.Context())
	lines, err := follow(ctx, r) // the header arrives before the first line
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		want := fmt.Sprintf("line %d", i)
		r.engine.lines <- want + "\n" // the next one is written only after this one has arrived
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("got %q (%v), want %q", lines.Text(), lines.Err(), want)
		}
	}
	leave()
	if ended := <-r.engine.ended; ended != "logs id-main: context canceled" {
		t.Errorf("the engine's call ended with %q", ended)
	}
	if n := r.engine.running(); n != 0 {
		t.Errorf("%d calls of the engine are left", n)
	}
}

func TestLogsFollowEnds(t *testing.T) {
	r := newRig(t, nil)
	lines, err := follow(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	r.engine.lines <- "first\n"
	close(r.engine.lines) // an error after the first byte ends the text
	var got []string
	for lines.Scan() {
		got = append(got, lines.Text())
	}
	if want := "first|the engine stopped"; strings.Join(got, "|") != want {
		t.Errorf("got %q, want %q", got, want)
	}

	r = newRig(t, nil)
	if _, err := follow(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	r.stop() // does not wait for followers
	if n := r.engine.running(); n != 0 {
		t.Errorf("%d followers outlive the server", n)
	}
}
