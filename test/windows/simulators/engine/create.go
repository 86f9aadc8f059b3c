package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"
)

// kept is a container as the client created it. It is stored in a label of the Linux container.
type kept struct {
	Config *container.Config
	Host   *container.HostConfig
}

const keptLabel = "winkube.test/windows"

// natBeneath is the Linux counterpart of the network nat.
const natBeneath = "bridge"

// read decodes a body that must hold exactly one value, without unknown fields.
func (e *Engine) read(w http.ResponseWriter, r *http.Request, into any) bool {
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		e.fault("%s %s: %v", r.Method, r.URL.Path, err)
		refuse(w, http.StatusBadRequest, "invalid JSON: "+err.Error())
		return false
	}
	return true
}

// send forwards the request with a new body.
func (e *Engine) send(w http.ResponseWriter, r *http.Request, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
	r.Header.Set("Content-Length", strconv.Itoa(len(data)))
	e.forward(w, r)
}

func (e *Engine) create(w http.ResponseWriter, r *http.Request, _ string) {
	var body container.CreateRequest
	if !e.read(w, r, &body) {
		return
	}
	if body.Config == nil {
		refuse(w, http.StatusBadRequest, "config cannot be empty in order to create a container")
		return
	}
	if body.HostConfig == nil {
		body.HostConfig = &container.HostConfig{}
	}
	var info struct{ NCPU int64 }
	if err := e.ask(r.Context(), "/info", &info); err != nil {
		refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	q := request{engine: e, Config: body.Config, Host: body.HostConfig, cpus: info.NCPU}
	for _, rule := range rules {
		if err := rule.check(q); err != nil {
			err = q.worded(rule.name, err)
			refuse(w, statusOf(err), err.Error())
			return
		}
	}
	if other := body.HostConfig.NetworkMode.ConnectedContainer(); other != "" {
		if owner, err := e.keptOf(r, other); err == nil && owner.Host.Isolation.IsHyperV() {
			refuse(w, http.StatusInternalServerError, "sharing of hyperv containers network is not supported") // container_operations_windows.go
			return
		}
	}
	for _, field := range unheeded(body.HostConfig) {
		e.fault("create %s: HostConfig.%s: Windows passes over it", r.URL.Query().Get("name"), field)
	}
	if body.HostConfig.Isolation.IsDefault() {
		body.HostConfig.Isolation = e.opts.Isolation // daemon/create_windows.go
	}
	beneath, err := e.translate(q, body.NetworkingConfig)
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	e.send(w, r, beneath)
}

// translate returns the create request for the Linux container.
func (e *Engine) translate(q request, networking *network.NetworkingConfig) (container.CreateRequest, error) {
	volumes, err := q.volumes()
	if err != nil {
		return container.CreateRequest{}, err
	}
	label, err := json.Marshal(kept{q.Config, q.Host})
	if err != nil {
		return container.CreateRequest{}, err
	}
	config, h := *q.Config, *q.Host
	config.Labels = map[string]string{keptLabel: string(label)}
	for key, value := range q.Labels {
		config.Labels[key] = value
	}
	config.User, config.WorkingDir, config.Volumes = "", inside(q.WorkingDir), nil
	for path := range q.Volumes {
		volumes = append(volumes, volume{target: path})
	}
	h = container.HostConfig{
		Binds: e.binds(volumes), LogConfig: h.LogConfig, NetworkMode: beneathMode(h.NetworkMode), PortBindings: h.PortBindings, RestartPolicy: h.RestartPolicy,
		AutoRemove: h.AutoRemove, DNS: h.DNS, DNSOptions: h.DNSOptions, DNSSearch: h.DNSSearch, ExtraHosts: h.ExtraHosts, Links: h.Links,
		PublishAllPorts: h.PublishAllPorts, ConsoleSize: h.ConsoleSize, VolumesFrom: h.VolumesFrom,
		Resources: container.Resources{Memory: h.Memory, NanoCPUs: h.NanoCPUs},
	}
	if networking != nil {
		networking.EndpointsConfig = renamed(networking.EndpointsConfig, "nat", natBeneath)
	}
	return container.CreateRequest{Config: &config, HostConfig: &h, NetworkingConfig: networking}, nil
}

func beneathMode(mode container.NetworkMode) container.NetworkMode {
	if mode == "" || mode == "default" || mode == "nat" {
		return natBeneath
	}
	return mode
}

func renamed[V any](m map[string]V, from, to string) map[string]V {
	out := make(map[string]V, len(m))
	for key, value := range m {
		if key == from {
			key = to
		}
		out[key] = value
	}
	return out
}

// keptOf returns what the client asked for when it created the container.
func (e *Engine) keptOf(r *http.Request, id string) (kept, error) {
	var inspected struct {
		Config struct{ Labels map[string]string }
	}
	var k kept
	if err := e.ask(r.Context(), "/containers/"+url.PathEscape(id)+"/json", &inspected); err != nil {
		return k, err
	}
	err := json.Unmarshal([]byte(inspected.Config.Labels[keptLabel]), &k)
	return k, err
}

// start refuses what Windows checks only at start.
func (e *Engine) start(w http.ResponseWriter, r *http.Request, id string) {
	if k, err := e.keptOf(r, id); err == nil { // otherwise the Linux engine reports the error
		q := request{engine: e, Config: k.Config, Host: k.Host}
		for _, rule := range startRules {
			if err := rule.check(q); err != nil {
				status := http.StatusInternalServerError // moby daemon/start.go: createSpec's errors are system errors
				if strings.HasSuffix(err.Error(), "host not found") {
					status = http.StatusNotFound
				}
				refuse(w, status, err.Error())
				return
			}
		}
		if message := e.mismatch(r, q); message != "" {
			refuse(w, http.StatusInternalServerError, message)
			return
		}
	}
	if e.opts.HNS == nil {
		e.forward(w, r)
		return
	}
	// Endpoints of the container's former run go before it starts: once it runs, a client may give it one that the engine must leave alone.
	e.endpoints.Lock()
	_ = e.detachEnded(r.Context()) // HNS may be down: attach fails then
	e.endpoints.Unlock()
	status, text, err := e.do(r.Context(), http.MethodPost, "/containers/"+url.PathEscape(id)+"/start", nil)
	if err == nil && status == http.StatusNoContent {
		if err = e.attach(r.Context(), id); err != nil {
			_, _, _ = e.do(context.WithoutCancel(r.Context()), http.MethodPost, "/containers/"+url.PathEscape(id)+"/kill", nil)
		}
	}
	relay(w, status, text, err)
}

// mismatch compares the image's os.version with the host's and returns HCS's error text (hcsshim internal/hcs/errors.go, 0xc0370101).
// Empty means that they match.
func (e *Engine) mismatch(r *http.Request, q request) string {
	var image map[string]any
	if err := e.ask(r.Context(), "/images/"+url.PathEscape(q.Image)+"/json", &image); err != nil || e.fits(imageVersion(image), q.hyperv()) {
		return ""
	}
	return "hcsshim::CreateComputeSystem: The container operating system does not match the host operating system."
}

// fits reports whether an image with that os.version runs on this host. Source: Microsoft, "Windows container version compatibility":
// process isolation needs the same build (2016 also needs the same revision, which is not checked here), and images of 2022 run on
// later hosts. With Hyper-V isolation the image must not be newer than the host.
func (e *Engine) fits(version string, hyperv bool) bool {
	parts := strings.Split(version, ".")
	if len(parts) < 3 {
		return true
	}
	build, err := strconv.Atoi(parts[2])
	if err != nil {
		return true
	}
	const stableABI = 20348
	return build == e.opts.Build || build < e.opts.Build && (hyperv || build >= stableABI)
}

// update refuses all resources. Source: moby container/container_windows.go UpdateContainer.
func (e *Engine) update(w http.ResponseWriter, r *http.Request, id string) {
	var body container.UpdateConfig
	if !e.read(w, r, &body) {
		return
	}
	q := request{engine: e, Config: &container.Config{}, Host: &container.HostConfig{Resources: body.Resources}, cpus: 1 << 20}
	for _, rule := range rules {
		if err := rule.check(q); err != nil {
			refuse(w, http.StatusBadRequest, err.Error())
			return
		}
	}
	if data, _ := json.Marshal(body.Resources); !slices.Equal(data, noResources) {
		refuse(w, http.StatusBadRequest, "Cannot update container "+id+": resource updating isn't supported on Windows")
		return
	}
	e.send(w, r, map[string]any{"RestartPolicy": body.RestartPolicy})
}

var noResources, _ = json.Marshal(container.Resources{})

// pause works only with Hyper-V isolation. Source: moby libcontainerd/local/local_windows.go Pause.
func (e *Engine) pause(w http.ResponseWriter, r *http.Request, id string) {
	if k, err := e.keptOf(r, id); err == nil && !k.Host.Isolation.IsHyperV() {
		refuse(w, http.StatusInternalServerError, "cannot pause container "+id+": not implemented for containers using process isolation")
		return
	}
	e.forward(w, r)
}

// top accepts no arguments. Source: moby daemon/top_windows.go.
func (e *Engine) top(w http.ResponseWriter, r *http.Request, _ string) {
	if r.URL.Query().Get("ps_args") != "" {
		refuse(w, http.StatusInternalServerError, "Windows does not support arguments to top")
		return
	}
	e.forward(w, r)
}

// archive refuses access while a Hyper-V container runs. Source: moby daemon/archive_windows.go
// isOnlineFSOperationPermitted.
func (e *Engine) archive(w http.ResponseWriter, r *http.Request, id string) {
	var inspected struct{ State struct{ Running bool } }
	k, err := e.keptOf(r, id)
	if err == nil && k.Host.Isolation.IsHyperV() && e.ask(r.Context(), "/containers/"+url.PathEscape(id)+"/json", &inspected) == nil && inspected.State.Running {
		refuse(w, http.StatusInternalServerError, "filesystem operations against a running Hyper-V container are not supported")
		return
	}
	query := r.URL.Query()
	query.Set("path", inside(query.Get("path")))
	r.URL.RawQuery = query.Encode()
	e.forward(w, r)
}

// exec translates the working directory and drops the user: Windows users do not exist in the Linux container.
func (e *Engine) exec(w http.ResponseWriter, r *http.Request, _ string) {
	var body container.ExecOptions
	if !e.read(w, r, &body) {
		return
	}
	if body.Privileged {
		e.fault("exec: Privileged: Windows passes over it")
	}
	body.User, body.Privileged, body.WorkingDir = "", false, inside(body.WorkingDir)
	e.send(w, r, body)
}
