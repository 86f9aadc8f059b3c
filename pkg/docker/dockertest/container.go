package dockertest

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/go-connections/nat"
)

// box is one container.
type box struct {
	id, name string
	config   *container.Config
	host     *container.HostConfig
	image    *Image
	created  time.Time
	lastRun
	running    bool
	everRan    bool
	process    *process
	past       []*process // of previous starts: the log continues
	endpoint   *segment
	address    string
	waiters    chan struct{} // closed when it stops
	stdinTaken bool
	files      map[string]string // copied in, by path; "" for a directory, which ends in a slash
	mounts     []container.MountPoint
}

// lastRun is the current run of a container, or the result of the last one.
type lastRun struct {
	exitCode  int
	oomKilled bool
	err       string
	pid       int
	started   time.Time
	finished  time.Time
}

func (b *box) state() string {
	switch {
	case b.running:
		return container.StateRunning
	case b.everRan:
		return container.StateExited
	}
	return container.StateCreated
}

// lookup finds a container by id, id prefix or name. The caller holds the lock.
func (e *Engine) lookup(key string) *box {
	if b := e.containers[key]; b != nil {
		return b
	}
	for id, b := range e.containers {
		if b.name == strings.TrimPrefix(key, "/") || len(key) >= 4 && strings.HasPrefix(id, key) {
			return b
		}
	}
	return nil
}

func (e containerAPI) listContainers(w http.ResponseWriter, r *http.Request) {
	args, err := filters.FromJSON(r.URL.Query().Get("filters"))
	if err != nil {
		refuse(w, http.StatusBadRequest, "invalid filter: %v", err)
		return
	}
	all := r.URL.Query().Get("all") == "1"
	e.mu.Lock()
	defer e.mu.Unlock()
	list := []container.Summary{}
	for _, b := range e.containers {
		if !b.running && !all || !args.MatchKVList("label", b.config.Labels) ||
			args.Contains("status") && !args.ExactMatch("status", b.state()) {
			continue
		}
		summary := container.Summary{
			ID: b.id, Names: []string{"/" + b.name}, Image: b.config.Image, ImageID: b.image.ID, Created: b.created.Unix(),
			Labels: b.config.Labels, State: b.state(), NetworkSettings: &container.NetworkSettingsSummary{Networks: b.networks()},
		}
		summary.HostConfig.NetworkMode = string(b.host.NetworkMode)
		list = append(list, summary)
	}
	slices.SortFunc(list, func(a, b container.Summary) int { return strings.Compare(b.ID, a.ID) })
	answer(w, http.StatusOK, list)
}

func (b *box) networks() map[string]*network.EndpointSettings {
	if b.host.NetworkMode.IsContainer() {
		return map[string]*network.EndpointSettings{}
	}
	settings := &network.EndpointSettings{IPAddress: b.address}
	if b.endpoint != nil {
		settings.NetworkID = b.endpoint.ID
	}
	return map[string]*network.EndpointSettings{string(b.host.NetworkMode): settings}
}

// ports are the forwarded ports: on Linux only networks of the driver bridge have port mappings.
func (b *box) ports() nat.PortMap {
	out := nat.PortMap{}
	if !b.running || b.endpoint == nil || b.endpoint.Driver != "bridge" {
		return out
	}
	for port, bindings := range b.host.PortBindings {
		for _, binding := range bindings {
			if binding.HostIP == "" {
				out[port] = append(out[port], nat.PortBinding{HostIP: "0.0.0.0", HostPort: binding.HostPort}, nat.PortBinding{HostIP: "::", HostPort: binding.HostPort})
				continue
			}
			out[port] = append(out[port], binding)
		}
	}
	if b.host.PublishAllPorts {
		for port := range b.config.ExposedPorts {
			if len(out[port]) == 0 {
				out[port] = []nat.PortBinding{{HostIP: "0.0.0.0", HostPort: strconv.Itoa(32768 + len(out))}}
			}
		}
	}
	return out
}

func (e containerAPI) createContainer(w http.ResponseWriter, r *http.Request) {
	var body container.CreateRequest
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Config == nil {
		refuse(w, http.StatusBadRequest, "config cannot be empty in order to create a container")
		return
	}
	if body.HostConfig == nil {
		body.HostConfig = &container.HostConfig{}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	image := e.findImage(body.Config.Image)
	if image == nil {
		refuse(w, http.StatusNotFound, "No such image: %s", body.Config.Image)
		return
	}
	if status, message := e.validate(body.Config, body.HostConfig); message != "" {
		refuse(w, status, "%s", message)
		return
	}
	if message := e.opts.merge(body.Config, image.config()); message != "" {
		refuse(w, http.StatusBadRequest, "%s", message)
		return
	}
	id := e.nextID()
	name := r.URL.Query().Get("name")
	if name == "" {
		name = "nameless_" + id[:12]
	}
	if !validName.MatchString(name) {
		refuse(w, http.StatusBadRequest, "Invalid container name (%s), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed", name)
		return
	}
	if holder := e.lookup(name); holder != nil && holder.name == name {
		refuse(w, http.StatusConflict, "Conflict. The container name \"/%s\" is already in use by container \"%s\". You have to remove (or rename) that container to be able to reuse that name.", name, holder.id)
		return
	}
	if body.HostConfig.NetworkMode == "" || body.HostConfig.NetworkMode == "default" {
		body.HostConfig.NetworkMode = "bridge"
		if e.opts.windows() {
			body.HostConfig.NetworkMode = "nat"
		}
	}
	b := &box{id: id, name: name, config: body.Config, host: body.HostConfig, image: image, created: e.clock.Now(), waiters: make(chan struct{})}
	if b.config.Hostname == "" && !b.host.NetworkMode.IsContainer() {
		b.config.Hostname = id[:12]
	}
	e.mount(b)
	e.containers[id] = b
	e.emit(b, events.ActionCreate)
	answer(w, http.StatusCreated, container.CreateResponse{ID: id, Warnings: []string{}})
}

// container serves requests about one container.
func (e containerAPI) container(w http.ResponseWriter, r *http.Request, id, verb string) {
	e.mu.Lock()
	b := e.lookup(id)
	e.mu.Unlock()
	if b == nil {
		refuse(w, http.StatusNotFound, "No such container: %s", id)
		return
	}
	switch r.Method + " " + verb {
	case "GET json":
		e.inspectContainer(w, b)
	case "POST start":
		e.startContainer(w, b)
	case "POST stop":
		e.stopContainer(w, r, b)
	case "POST kill":
		e.killContainer(w, r, b)
	case "POST wait":
		e.waitContainer(w, r, b)
	case "POST update":
		e.updateContainer(w, r, b)
	case "POST resize":
		e.resize(w, r, b)
	case "DELETE ":
		e.removeContainer(w, r, b)
	case "GET logs":
		e.logs(w, r, b)
	case "PUT archive":
		e.unpack(w, r, b)
	case "GET archive":
		e.archive(w, r, b)
	case "GET stats":
		e.stats(w, b)
	case "POST attach":
		e.attach(w, r, b)
	case "POST exec":
		e.createExec(w, r, b)
	default:
		refuse(w, http.StatusNotFound, "page not found")
	}
}

func (e containerAPI) inspectContainer(w http.ResponseWriter, b *box) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var commands []string
	for id, c := range e.execs {
		if c.box == b && c.running {
			commands = append(commands, id)
		}
	}
	settings := &container.NetworkSettings{Networks: b.networks()}
	settings.Ports = b.ports()
	var health *container.Health
	if b.checksHealth() {
		health = &container.Health{Status: container.Starting}
	}
	answer(w, http.StatusOK, container.InspectResponse{
		ContainerJSONBase: &container.ContainerJSONBase{
			ExecIDs: commands, ID: b.id, Created: stamp(b.created), Name: "/" + b.name, Image: b.image.ID, HostConfig: b.host, Platform: e.opts.OS,
			State: &container.State{
				Status: b.state(), Running: b.running, OOMKilled: b.oomKilled, Pid: b.pid, ExitCode: b.exitCode, Error: b.err,
				StartedAt: stamp(b.started), FinishedAt: stamp(b.finished), Health: health,
			},
		},
		Mounts:          b.mounts,
		Config:          b.config,
		NetworkSettings: settings,
	})
}

func (e containerAPI) startContainer(w http.ResponseWriter, b *box) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if b.running {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	if code, message := e.start(b); message != "" {
		b.exitCode, b.err = code, message
		if code == 0 {
			b.exitCode = 128
		}
		status := http.StatusInternalServerError
		if code == 127 || code == 126 {
			status = http.StatusBadRequest
		}
		refuse(w, status, "%s", message)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// start runs the container's program, or returns the engine's exit code and error message.
func (e *Engine) start(b *box) (int, string) {
	if message := e.checkJoined(b); message != "" {
		return 0, message
	}
	if e.opts.NoSysResource && b.host.OomScoreAdj < 0 {
		return 0, "OCI runtime create failed: container_linux.go:349: starting container process caused: process_linux.go:306: " +
			"getting the final child's pid from pipe caused: can't get final child's PID from pipe: EOF: unknown"
	}
	argv := slices.Concat([]string(b.config.Entrypoint), []string(b.config.Cmd))
	program := e.opts.Program(argv)
	if program == nil {
		return 127, notFound("create", argv[0])
	}
	if message := e.connect(b); message != "" {
		return 0, message
	}
	if b.process != nil {
		b.past = append(b.past, b.process)
	}
	e.serial++
	b.running, b.everRan, b.exitCode, b.err, b.pid, b.started = true, true, 0, "", 4_000_000+e.serial, e.clock.Now()
	b.oomKilled = false
	var run *process
	run = launch(e.clock, program, Process{Args: argv, Env: b.config.Env, Dir: b.config.WorkingDir, TTY: b.config.Tty},
		b.config.OpenStdin, func(code int) {
			e.mu.Lock()
			defer e.mu.Unlock()
			if b.process == run && b.running {
				e.ended(b, code)
			}
		})
	b.process = run
	e.emit(b, events.ActionStart)
	return 0, ""
}

func notFound(during, name string) string {
	return "OCI runtime " + during + " failed: " + during + " failed: unable to start container process: exec: " + strconv.Quote(name) +
		": executable file not found in $PATH: unknown"
}

// ended records the end of a container. The caller holds the lock.
func (e *Engine) ended(b *box, code int) {
	b.running, b.exitCode, b.pid, b.finished = false, code, 0, e.clock.Now()
	for _, c := range e.execs {
		if c.box == b {
			c.stop(137)
		}
	}
	b.process.finish()
	b.process.kill()
	b.disconnect()
	e.emit(b, events.ActionDie)
	close(b.waiters)
	b.waiters = make(chan struct{})
}

func (e containerAPI) stopContainer(w http.ResponseWriter, r *http.Request, b *box) {
	seconds, err := strconv.Atoi(r.URL.Query().Get("t"))
	if err != nil {
		seconds = 10
	}
	e.mu.Lock()
	if !b.running {
		e.mu.Unlock()
		w.WriteHeader(http.StatusNotModified)
		return
	}
	stopped, run := b.waiters, b.process
	signal := "TERM"
	if b.config.StopSignal != "" {
		signal = strings.TrimPrefix(b.config.StopSignal, "SIG")
	}
	run.signal(signal)
	e.emit(b, events.ActionKill)
	e.mu.Unlock()
	if seconds > 0 {
		select {
		case <-stopped:
		case <-e.clock.After(time.Duration(seconds) * time.Second):
		case <-r.Context().Done(): // a real engine continues; nothing waits for this one
			return
		}
	}
	e.mu.Lock()
	if b.process == run && b.running {
		e.ended(b, 137)
	}
	e.emit(b, events.ActionStop)
	e.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

func (e containerAPI) killContainer(w http.ResponseWriter, r *http.Request, b *box) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !b.running {
		refuse(w, http.StatusConflict, "Cannot kill container: %s: Container %s is not running", b.id, b.id)
		return
	}
	signal := strings.TrimPrefix(r.URL.Query().Get("signal"), "SIG")
	if signal == "" {
		signal = "KILL"
	}
	e.emit(b, events.ActionKill)
	b.process.signal(signal)
	if signal == "KILL" {
		e.ended(b, 137)
	}
	w.WriteHeader(http.StatusNoContent)
}

func (e containerAPI) waitContainer(w http.ResponseWriter, r *http.Request, b *box) {
	e.mu.Lock()
	stopped, running := b.waiters, b.running
	e.mu.Unlock()
	if running {
		select {
		case <-stopped:
		case <-r.Context().Done():
			return
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	answer(w, http.StatusOK, container.WaitResponse{StatusCode: int64(b.exitCode)})
}

func (e containerAPI) removeContainer(w http.ResponseWriter, r *http.Request, b *box) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if b.running {
		if r.URL.Query().Get("force") != "1" {
			refuse(w, http.StatusConflict, "You cannot remove a running container %s. Stop the container before attempting removal or force remove", b.id)
			return
		}
		e.ended(b, 137)
	}
	delete(e.containers, b.id)
	if r.URL.Query().Get("v") == "1" {
		e.dropVolumes(b)
	}
	e.emit(b, events.ActionDestroy)
	w.WriteHeader(http.StatusNoContent)
}

// Kill ends a container as if its program had exited with code, or as if the kernel had killed it for lack of memory.
func (e *Engine) Kill(id string, code int, oom bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if b := e.lookup(id); b != nil && b.running {
		b.oomKilled = oom
		if oom {
			e.emit(b, events.ActionOOM)
		}
		e.ended(b, code)
	}
}

func (e containerAPI) stats(w http.ResponseWriter, b *box) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.clock.Now()
	answer(w, http.StatusOK, container.StatsResponse{
		ID: b.id, Name: "/" + b.name, Read: now, PreRead: now, NumProcs: 1,
		CPUStats:    container.CPUStats{CPUUsage: container.CPUUsage{TotalUsage: uint64(now.Sub(b.started).Microseconds())}},
		MemoryStats: container.MemoryStats{Usage: 1 << 20, Limit: uint64(e.opts.Memory)},
	})
}
