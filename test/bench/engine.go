package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// engine is the bare peer: two containers by the Docker API, nothing else. It speaks the API itself so that no line of ours is measured.
type engine struct {
	client *http.Client
	pause  string // image of the first container, which holds the network
	sample string // image of the second
}

func newEngine(socket, pause, sample string) *engine {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	return &engine{client: &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 80}}, pause: pause, sample: sample}
}

func (e *engine) call(ctx context.Context, method, path string, in, out any) error {
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://engine"+path, &body)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := e.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode >= 400 {
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, bytes.TrimSpace(answer))
	}
	if out != nil {
		return json.Unmarshal(answer, out)
	}
	return nil
}

func (e *engine) container(ctx context.Context, config map[string]any) (id string, err error) {
	var created struct{ ID string }
	if err := e.call(ctx, http.MethodPost, "/containers/create", config, &created); err != nil {
		return "", err
	}
	return created.ID, e.call(ctx, http.MethodPost, "/containers/"+created.ID+"/start", nil, nil)
}

// pod starts the two containers and returns their ids and how long it took.
func (e *engine) pod(ctx context.Context, network string) (ids []string, took time.Duration, err error) {
	begin := time.Now()
	first, err := e.container(ctx, map[string]any{"Image": e.pause, "HostConfig": map[string]any{"NetworkMode": network}})
	if first != "" {
		ids = append(ids, first)
	}
	if err != nil {
		return ids, 0, err
	}
	second, err := e.container(ctx, map[string]any{"Image": e.sample, "Cmd": []string{"serve", "8080"}, "HostConfig": map[string]any{"NetworkMode": "container:" + first}})
	if second != "" {
		ids = append(ids, second)
	}
	return ids, time.Since(begin), err
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

// oneByOne measures n pods, each alone.
func (e *engine) oneByOne(ctx context.Context, network string, n int) (durations, error) {
	var all durations
	for range n {
		ids, took, err := e.pod(ctx, network)
		if err == nil {
			all = append(all, took)
		}
		if removeErr := e.remove(ctx, ids); err == nil {
			err = removeErr
		}
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// burst measures n pods begun at once: the durations are counted from the common begin.
func (e *engine) burst(ctx context.Context, network string, n int) (durations, error) {
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
			made, _, err := e.pod(ctx, network)
			mu.Lock()
			defer mu.Unlock()
			ids = append(ids, made...)
			all = append(all, time.Since(begin))
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
