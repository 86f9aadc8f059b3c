package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestRequestLimit: requests above the limit are rejected, /healthz still answers, and later requests are served again.
func TestRequestLimit(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	r := newRig(t, func(config *Config, parts *Parts) {
		config.maxRequests = 2
		parts.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			begun <- struct{}{}
			<-release
			plain(w, http.StatusOK, "metrics\n")
		})
	})
	var group sync.WaitGroup
	for range 2 {
		client := r.http(r.as("root"))
		group.Go(func() {
			if status, _ := r.do(client, "GET", "/metrics", ""); status != http.StatusOK {
				t.Errorf("one of those that had room: %d", status)
			}
		})
		<-begun
	}
	for path, want := range map[string]int{"/pods": http.StatusTooManyRequests, "/unknown": http.StatusTooManyRequests, "/healthz": http.StatusOK, "/healthz/ping": http.StatusOK,
		"/containerLogs/default/web/main": http.StatusOK} {
		if status, body := r.get("GET", path, ""); status != want {
			t.Errorf("%s: got %d %q, want %d", path, status, body, want)
		}
	}
	if got := r.limited(limitRequests); got != 2 {
		t.Errorf("%d refused requests are counted, want 2", got)
	}
	if status, _ := r.do(r.http(r.as("stranger")), "GET", "/pods", ""); status != http.StatusForbidden {
		t.Errorf("a client without permission sees the limit: %d", status)
	}
	close(release)
	group.Wait()
	if status, body := r.get("GET", "/pods", ""); status != http.StatusOK {
		t.Errorf("afterwards: got %d %q", status, body)
	}
}

// TestStreamLimit: streams and logs share a separate limit.
func TestStreamLimit(t *testing.T) {
	r := newRig(t, func(config *Config, _ *Parts) { config.maxStreams = 2 })
	var group sync.WaitGroup
	for range 2 {
		out := &signalling{first: make(chan struct{})}
		group.Go(func() {
			_ = session{path: "exec/default/web/main", command: []string{"hang"}, stdout: out}.run(t.Context(), r, 0) // ends with the server
		})
		<-out.first
	}
	for path, want := range map[string]int{"/exec/default/web/main?command=x&output=1": 429, "/attach/default/web/main?output=1": 429, "/portForward/default/web": 429,
		"/containerLogs/default/web/main": 429, "/pods": 200} {
		response, err := r.http(r.as("root")).Get("https://" + r.server.Addr().String() + path)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want || (want == 429) != (response.Header.Get("Retry-After") == "1") {
			t.Errorf("%s: got %d, Retry-After %q, want %d", path, response.StatusCode, response.Header.Get("Retry-After"), want)
		}
	}
	r.stop()
	group.Wait()
}

func TestBigRequests(t *testing.T) {
	r := newRig(t, nil)
	client := r.http(r.as("root"))
	url := "https://" + r.server.Addr().String()
	send := func(method, path string, body io.Reader, header http.Header) (int, error) {
		request, err := http.NewRequest(method, url+path, body)
		if err != nil {
			t.Fatal(err)
		}
		request.Header = header
		response, err := client.Do(request)
		if err != nil {
			return 0, err
		}
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, response.Body)
		return response.StatusCode, nil
	}
	form := http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}
	for _, test := range []struct {
		name   string
		body   io.Reader
		header http.Header
		want   int
	}{
		{"small", strings.NewReader("cmd=echo+a"), form, http.StatusOK},
		{"announced as too long", bytes.NewReader(make([]byte, maxBody+1)), form, http.StatusRequestEntityTooLarge},
		{"without an end", io.MultiReader(strings.NewReader("cmd=echo+a&more="), pattern{}), form, http.StatusRequestEntityTooLarge},
		{"long header", strings.NewReader("cmd=echo+a"), http.Header{"X-Long": {strings.Repeat("x", maxHeaderBytes+8<<10)}}, http.StatusRequestHeaderFieldsTooLarge},
		{"small again", strings.NewReader("cmd=echo+a"), form, http.StatusOK},
	} {
		// Whether the client sees the answer, or only that its body is no longer read, depends on timing.
		if status, err := send("POST", "/run/default/web/main", test.body, test.header); status != test.want && (err == nil || test.want == http.StatusOK) {
			t.Errorf("%s: got %d, %v, want %d", test.name, status, err, test.want)
		}
	}
}

// TestNobodyTakes: a client that does not read a long answer is disconnected; the time before the answer starts does not count.
func TestNobodyTakes(t *testing.T) {
	gaveUp, wait := make(chan struct{}), make(chan struct{})
	r := newRig(t, func(config *Config, parts *Parts) {
		config.takeTimeout = time.Second // long enough for a process on a busy machine
		parts.Metrics = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			context.AfterFunc(r.Context(), func() { close(gaveUp) })
			for r.Context().Err() == nil {
				_, _ = w.Write(make([]byte, 1<<20))
			}
		})
		parts.MetricsProbes = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			<-wait
			fmt.Fprintln(w, "at last")
		})
	})
	slow := make(chan string, 1)
	client := r.http(r.as("root"))
	go func() {
		_, body := r.do(client, "GET", "/metrics/probes", "")
		slow <- body
	}()
	response, err := r.http(r.as("root")).Get("https://" + r.server.Addr().String() + "/metrics") // and do not read
	if err != nil {
		t.Fatal(err)
	}
	<-gaveUp
	response.Body.Close() // otherwise the server waits some seconds to say goodbye
	close(wait)           // more than takeTimeout has passed
	if body := <-slow; body != "at last\n" {
		t.Errorf("got %q", body)
	}
}

// TestOneUsersShare: one user at the limit leaves room for another.
func TestOneUsersShare(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	r := newRig(t, func(config *Config, parts *Parts) {
		config.maxRequests = 4
		parts.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			begun <- struct{}{}
			<-release
			plain(w, http.StatusOK, "metrics\n")
		})
	})
	r.api.rules["second"] = []string{"*"}
	var group sync.WaitGroup
	for range 3 {
		client := r.http(r.as("root"))
		group.Go(func() {
			if status, _ := r.do(client, "GET", "/metrics", ""); status != http.StatusOK {
				t.Errorf("within the share: %d", status)
			}
		})
		<-begun
	}
	if status, _ := r.get("GET", "/pods", ""); status != http.StatusTooManyRequests {
		t.Errorf("beyond the share: %d", status)
	}
	if status, _ := r.do(r.http(r.as("second")), "GET", "/pods", ""); status != http.StatusOK {
		t.Errorf("another user: %d", status)
	}
	close(release)
	group.Wait()
	if status, _ := r.get("GET", "/pods", ""); status != http.StatusOK || len(r.server.requestBound.in) != 0 {
		t.Errorf("afterwards: %d, %v", status, r.server.requestBound.in)
	}
}
