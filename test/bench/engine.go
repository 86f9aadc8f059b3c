package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// engine is the bare engine for comparison: two containers through the Docker API, nothing else. It uses the API
// directly, so that none of our code is measured.
type engine struct {
	client  *http.Client
	network string // of its containers: bridge, the engine's own, or none, which pods have whose interfaces the kubelet makes
	pause   string // of the first container, which holds the network
	sample  string // of the second container
}

func newEngine(socket, network, pause, sample string) *engine {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	return &engine{client: &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 80}}, network: network, pause: pause, sample: sample}
}

func (e *engine) call(ctx context.Context, method, path string, in, out any) error {
	body, err := e.stream(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer body.Close()
	answer, err := io.ReadAll(body)
	if err != nil || out == nil {
		return err
	}
	return json.Unmarshal(answer, out)
}

// stream is like call, but the caller reads and closes the response.
func (e *engine) stream(ctx context.Context, method, path string, in any) (io.ReadCloser, error) {
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			return nil, err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://engine"+path, &body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := e.client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= 400 {
		defer response.Body.Close()
		answer, _ := io.ReadAll(response.Body)
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, response.Status, bytes.TrimSpace(answer))
	}
	return response.Body, nil
}

// container creates and starts a container; made is when it was created, before its start.
func (e *engine) container(ctx context.Context, config map[string]any) (id string, made time.Time, err error) {
	var created struct{ ID string }
	if err := e.call(ctx, http.MethodPost, "/containers/create", config, &created); err != nil {
		return "", made, err
	}
	return created.ID, time.Now(), e.call(ctx, http.MethodPost, "/containers/"+created.ID+"/start", nil, nil)
}

// bare is one pod on the bare engine: its containers and the times to start them, in milliseconds.
type bare struct {
	ids   []string
	total float64
	// second is the time for the second container, create that for its creation only.
	second, create float64
}

// pod starts the two containers. After an error, the result still has what was created.
func (e *engine) pod(ctx context.Context) (pod bare, err error) {
	begin := time.Now()
	first, _, err := e.container(ctx, map[string]any{"Image": e.pause, "HostConfig": map[string]any{"NetworkMode": e.network}})
	if first != "" {
		pod.ids = append(pod.ids, first)
	}
	if err != nil {
		return pod, err
	}
	between := time.Now()
	second, made, err := e.container(ctx, map[string]any{"Image": e.sample, "Cmd": []string{"serve", "8080"}, "HostConfig": map[string]any{"NetworkMode": "container:" + first}})
	if second != "" {
		pod.ids = append(pod.ids, second)
	}
	pod.total, pod.second, pod.create = inMS(time.Since(begin)), inMS(time.Since(between)), inMS(made.Sub(between))
	return pod, err
}

// remove removes containers, newest first.
func (e *engine) remove(ctx context.Context, ids []string) error {
	for i := len(ids) - 1; i >= 0; i-- {
		if err := e.call(ctx, http.MethodDelete, "/containers/"+ids[i]+"?force=true&v=true", nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// one starts, measures and removes one pod.
func (e *engine) one(ctx context.Context) (bare, error) {
	pod, err := e.pod(ctx)
	return pod, errors.Join(err, e.remove(ctx, pod.ids))
}

// burst measures n pods started together; durations count from the common start.
func (e *engine) burst(ctx context.Context, n int) (durations, error) {
	begin := time.Now()
	var (
		mu    sync.Mutex
		group sync.WaitGroup
		all   durations
		ids   []string
		fault error
	)
	for range n {
		group.Go(func() {
			made, err := e.pod(ctx)
			mu.Lock()
			defer mu.Unlock()
			ids = append(ids, made.ids...)
			all = append(all, inMS(time.Since(begin)))
			if err != nil {
				fault = err
			}
		})
	}
	group.Wait()
	if err := e.remove(ctx, ids); fault == nil {
		fault = err
	}
	return all, fault
}
