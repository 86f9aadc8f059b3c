package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
)

// Engine is a client of a host's Docker engine, independent of our kubelet: a few calls of its HTTP API.
type Engine struct{ client *http.Client }

// Engine returns the host's engine.
func (h *Host) Engine() *Engine {
	socket := h.EngineSocket()
	return &Engine{&http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}}
}

// call sends one request. It encodes in as JSON and decodes the answer into out; both may be nil.
func (e *Engine) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://engine"+path, body)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := e.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode >= 400 {
		return fmt.Errorf("%s %s: %s: %s", method, path, response.Status, strings.TrimSpace(string(data)))
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(data, out)
}

// Ping returns nil if the engine responds.
func (e *Engine) Ping(ctx context.Context) error {
	return e.call(ctx, http.MethodGet, "/_ping", nil, nil)
}

// HasImage reports whether the engine has an image with that name and content.
func (e *Engine) HasImage(ctx context.Context, name, content string) bool {
	var image struct {
		Config struct{ Labels map[string]string }
	}
	return e.call(ctx, http.MethodGet, "/images/"+url.PathEscape(name)+"/json", nil, &image) == nil && image.Config.Labels[contentLabel] == content
}

// Load loads a tar file in the format of `docker save`. The engine reports failures inside a successful response.
func (e *Engine) Load(ctx context.Context, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	var answer json.RawMessage
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://engine/images/load?quiet=1", file)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/x-tar")
	response, err := e.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	decoder := json.NewDecoder(response.Body)
	for decoder.Decode(&answer) == nil {
		if bytes.Contains(answer, []byte(`"errorDetail"`)) {
			return fmt.Errorf("cannot load %s: %s", path, answer)
		}
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("cannot load %s: %s", path, response.Status)
	}
	return nil
}

// Container is one container of an engine.
type Container struct {
	ID     string `json:"Id"`
	Names  []string
	Image  string
	State  string
	Labels map[string]string
}

// Containers lists all containers, running or not.
func (e *Engine) Containers(ctx context.Context) ([]Container, error) {
	var list []Container
	err := e.call(ctx, http.MethodGet, "/containers/json?all=1", nil, &list)
	return list, err
}

// Details is what an engine reports about one container.
type Details struct {
	HostConfig struct {
		Runtime, PidMode string
		PublishAllPorts  bool
	}
	Config map[string]any    // as the engine has merged it with the image's
	State  struct{ Pid int } // of its first process, on this machine; 0: not running
	// NetworkSettings has the container's settings by network name.
	NetworkSettings struct {
		Networks map[string]struct{ IPAddress string }
	}
}

// Inspect returns the details of one container.
func (e *Engine) Inspect(ctx context.Context, id string) (Details, error) {
	var out Details
	err := e.call(ctx, http.MethodGet, "/containers/"+url.PathEscape(id)+"/json", nil, &out)
	return out, err
}

// Run creates and starts a container without an agent and returns its ID.
func (e *Engine) Run(ctx context.Context, name, image string) (string, error) {
	var created struct {
		ID string `json:"Id"`
	}
	if err := e.call(ctx, http.MethodPost, "/containers/create?name="+url.QueryEscape(name), map[string]any{"Image": image}, &created); err != nil {
		return "", err
	}
	return created.ID, e.call(ctx, http.MethodPost, "/containers/"+created.ID+"/start", nil, nil)
}

// Remove kills and removes a container.
func (e *Engine) Remove(ctx context.Context, id string) error {
	return e.call(ctx, http.MethodDelete, "/containers/"+url.PathEscape(id)+"?force=1", nil, nil)
}

// Tag adds a name to an image.
func (e *Engine) Tag(ctx context.Context, image, name string) error {
	repository, tag, _ := strings.Cut(name, ":")
	query := url.Values{"repo": {repository}, "tag": {tag}}
	return e.call(ctx, http.MethodPost, "/images/"+url.PathEscape(image)+"/tag?"+query.Encode(), nil, nil)
}

// Images lists the names of all images, including tags.
func (e *Engine) Images(ctx context.Context) ([]string, error) {
	var list []struct{ RepoTags []string }
	err := e.call(ctx, http.MethodGet, "/images/json", nil, &list)
	var names []string
	for _, image := range list {
		names = append(names, image.RepoTags...)
	}
	return names, err
}

// RemoveImage removes an image by name.
func (e *Engine) RemoveImage(ctx context.Context, name string) error {
	return e.call(ctx, http.MethodDelete, "/images/"+url.PathEscape(name), nil, nil)
}

// Kill kills a container immediately.
func (e *Engine) Kill(ctx context.Context, id string) error {
	return e.call(ctx, http.MethodPost, "/containers/"+url.PathEscape(id)+"/kill", nil, nil)
}

// Terminate asks a container's program to end.
func (e *Engine) Terminate(ctx context.Context, id string) error {
	return e.call(ctx, http.MethodPost, "/containers/"+url.PathEscape(id)+"/kill?signal=TERM", nil, nil)
}

// RemoveNetwork removes a network by name; a missing network is not an error.
func (e *Engine) RemoveNetwork(ctx context.Context, name string) error {
	err := e.call(ctx, http.MethodDelete, "/networks/"+url.PathEscape(name), nil, nil)
	if err != nil && e.call(ctx, http.MethodGet, "/networks/"+url.PathEscape(name), nil, nil) != nil {
		return nil
	}
	return err
}

// Event is an event that an engine reports.
type Event struct {
	Type, Action string // "container", "exec_create: /bin/true"
	Actor        struct {
		ID         string
		Attributes map[string]string // including a container's labels
	}
	TimeNano int64 // Unix
}

// Events calls each for every event of the engine, in order. It returns nil when ctx ends, or an error when the stream
// ends. It calls began once the stream has started.
func (e *Engine) Events(ctx context.Context, began func(), each func(Event)) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/events", nil)
	if err != nil {
		return err
	}
	response, err := e.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	began()
	for decoder := json.NewDecoder(response.Body); ; {
		var event Event
		if err := decoder.Decode(&event); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("the engine's events ended: %w", err)
		}
		each(event)
	}
}

// Processes lists the command lines of a running container's processes.
func (e *Engine) Processes(ctx context.Context, id string) ([]string, error) {
	var answer struct{ Processes [][]string }
	err := e.call(ctx, http.MethodGet, "/containers/"+url.PathEscape(id)+"/top?ps_args="+url.QueryEscape("-o pid,args"), nil, &answer)
	var lines []string
	for _, process := range answer.Processes {
		lines = append(lines, strings.Join(process, " "))
	}
	return lines, err
}

// CreateInternal creates a bridge network; the engine does not publish ports of its containers.
func (e *Engine) CreateInternal(ctx context.Context, name, subnet string) error {
	return e.call(ctx, http.MethodPost, "/networks/create", map[string]any{"Name": name, "Driver": "bridge", "Internal": true,
		"IPAM": map[string]any{"Config": []map[string]string{{"Subnet": subnet}}}}, nil)
}

// Disconnect disconnects a container from a network, as a user would.
func (e *Engine) Disconnect(ctx context.Context, network, id string) error {
	return e.call(ctx, http.MethodPost, "/networks/"+url.PathEscape(network)+"/disconnect", map[string]string{"Container": id}, nil)
}

// Restart restarts a container, as a user would.
func (e *Engine) Restart(ctx context.Context, id string) error {
	return e.call(ctx, http.MethodPost, "/containers/"+url.PathEscape(id)+"/restart?t=0", nil, nil)
}
