// Package dockertest is a simulated Docker engine for tests: a stateful model of the part of the Docker API that package docker uses, served over
// HTTP on any listener. It validates requests as the engine does, fails and hangs on request, and prints its state.
//
//	docker client --HTTP--> Engine: containers run Programs, Go functions in this process
package dockertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/docker/docker/api/types/events"
	"k8s.io/utils/clock"
)

// Options describe the simulated engine. The zero value is Docker 20.10 on Linux.
type Options struct {
	Version       string // of the engine; "": 20.10.24
	APIVersion    string // newest supported; "": 1.41
	MinAPIVersion string // oldest; "": 1.12
	OS            string // linux or windows; "": linux
	Build         int    // Windows build; below 16299 containers cannot share a network
	CPUs          int    // 0: 4
	Memory        int64  // bytes; 0: 8 GiB
	LiveRestore   bool
	// Snapshotter is the one of containerd's image store, such as overlayfs; "": images are in the graph driver overlay2.
	Snapshotter string
	Containerd  string // address that the engine reports; "": none
	NoRuntime   bool   // the engine cannot run its default runtime, runc
	// NoSysResource makes starts with an OOM score below 0 fail, as on a host whose engine lacks CAP_SYS_RESOURCE.
	NoSysResource bool
	// Program returns the function that runs argv; nil: no such executable. Without it every command waits to be stopped.
	Program func(argv []string) Program
	// IsFile says which host paths are files, which Windows cannot mount; nil: it checks the machine's own files.
	IsFile func(hostPath string) bool
	Clock  clock.Clock
}

// Engine is the simulation. It is an http.Handler; all methods may be called concurrently.
type Engine struct {
	opts  Options
	clock clock.Clock

	mu         sync.Mutex
	serial     int
	containers map[string]*box
	execs      map[string]*command
	images     map[string]*Image
	remotes    map[string]Remote
	networks   map[string]*segment
	volumes    map[string]bool // by name; true: anonymous
	events     []event
	changed    chan struct{} // closed and replaced at each event
	down       chan struct{} // closed and replaced at each Restart
	faults
}

// Groups of API requests. They share the Engine's state and lock.
type (
	systemAPI    struct{ *Engine }
	containerAPI struct{ *Engine }
	execAPI      struct{ *Engine }
	imageAPI     struct{ *Engine }
	networkAPI   struct{ *Engine }
)

// New returns an engine without containers and images, with the networks that every engine has.
func New(opts Options) *Engine {
	setDefault(&opts.Version, "20.10.24")
	setDefault(&opts.APIVersion, "1.41")
	setDefault(&opts.MinAPIVersion, "1.12")
	setDefault(&opts.OS, "linux")
	if opts.CPUs == 0 {
		opts.CPUs = 4
	}
	if opts.Memory == 0 {
		opts.Memory = 8 << 30
	}
	if opts.IsFile == nil {
		opts.IsFile = func(name string) bool {
			info, err := os.Stat(name)
			return err == nil && !info.IsDir()
		}
	}
	if opts.Program == nil {
		opts.Program = func([]string) Program { return Pause }
	}
	e := &Engine{
		opts: opts, clock: opts.Clock, containers: map[string]*box{}, execs: map[string]*command{}, images: map[string]*Image{},
		remotes: map[string]Remote{}, networks: map[string]*segment{}, volumes: map[string]bool{}, changed: make(chan struct{}), down: make(chan struct{}),
	}
	if e.clock == nil {
		e.clock = clock.RealClock{}
	}
	e.addDefaultNetworks()
	return e
}

func setDefault(s *string, value string) {
	if *s == "" {
		*s = value
	}
}

// Restart ends all event and log streams and attached sessions, as an engine restart does. Without LiveRestore all containers end as well, with exit
// code 255.
func (e *Engine) Restart() {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.down)
	e.down = make(chan struct{})
	if !e.opts.LiveRestore {
		for _, b := range e.containers {
			if b.running {
				e.ended(b, 255)
			}
		}
	}
}

// Upgrade changes the engine's version, as an update of the host's packages does.
func (e *Engine) Upgrade(version, apiVersion, minAPIVersion string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.opts.Version, e.opts.APIVersion, e.opts.MinAPIVersion = version, apiVersion, minAPIVersion
}

// Reload is a reload of the engine's configuration, with a default runtime or without one (moby daemon/reload.go).
func Reload(e *Engine, noRuntime bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.opts.NoRuntime = noRuntime
	e.tell(events.DaemonEventType, events.ActionReload, events.Actor{ID: "dockertest"})
}

var versioned = regexp.MustCompile(`^/v(\d+\.\d+)(/.*)$`)

// ServeHTTP answers one request.
func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	where := r.URL.Path
	var version string
	if m := versioned.FindStringSubmatch(where); m != nil {
		version, where = m[1], m[2]
	}
	f := e.requested(r.Method, where)
	e.mu.Lock()
	apiVersion, minVersion := e.opts.APIVersion, e.opts.MinAPIVersion
	e.mu.Unlock()
	w.Header().Set("Api-Version", apiVersion)
	w.Header().Set("Ostype", e.opts.OS)
	w.Header().Set("Server", "Docker/"+e.opts.Version+" ("+e.opts.OS+")")
	if f != nil && f.release != nil {
		select {
		case <-f.release:
		case <-r.Context().Done():
			return
		}
	} else if f != nil {
		refuse(w, f.status, "%s", f.message)
		return
	}
	switch {
	case version == "":
	case older(version, minVersion):
		refuse(w, http.StatusBadRequest, "client version %s is too old. Minimum supported API version is %s, please upgrade your client to a newer version", version, minVersion)
		return
	case older(apiVersion, version):
		refuse(w, http.StatusBadRequest, "client version %s is too new. Maximum supported API version is %s", version, apiVersion)
		return
	}
	e.route(w, r, where)
}

func older(a, b string) bool {
	number := func(v string) int {
		major, minor, _ := strings.Cut(v, ".")
		x, _ := strconv.Atoi(major)
		y, _ := strconv.Atoi(minor)
		return x*1000 + y
	}
	return number(a) < number(b)
}

// route finds the handler. Image names contain slashes, so that http.ServeMux cannot match them.
func (e *Engine) route(w http.ResponseWriter, r *http.Request, where string) {
	parts := strings.Split(strings.Trim(where, "/"), "/")
	kind, id, verb := parts[0], "", ""
	if len(parts) > 1 {
		id, verb = strings.Join(parts[1:len(parts)-1], "/"), parts[len(parts)-1]
		if id == "" {
			id, verb = verb, ""
		}
	}
	switch key := r.Method + " " + kind; {
	case kind == "_ping":
		_, _ = w.Write([]byte("OK"))
	case kind == "version":
		systemAPI{e}.version(w)
	case kind == "info":
		systemAPI{e}.info(w)
	case kind == "events":
		systemAPI{e}.streamEvents(w, r)
	case kind == "containers" && id == "json":
		containerAPI{e}.listContainers(w, r)
	case kind == "containers" && id == "create":
		containerAPI{e}.createContainer(w, r)
	case kind == "containers":
		containerAPI{e}.container(w, r, id, verb)
	case kind == "exec":
		execAPI{e}.exec(w, r, id, verb)
	case key == "GET images" && id == "json" && verb == "":
		imageAPI{e}.listImages(w)
	case key == "POST images" && id == "create":
		imageAPI{e}.pullImage(w, r)
	case key == "GET images" && verb == "json":
		imageAPI{e}.inspectImage(w, id)
	case key == "DELETE images":
		imageAPI{e}.removeImage(w, strings.Join(parts[1:], "/"))
	case kind == "networks":
		networkAPI{e}.network(w, r, id, verb)
	default:
		refuse(w, http.StatusNotFound, "page not found")
	}
}

func (e systemAPI) version(w http.ResponseWriter) {
	answer(w, http.StatusOK, map[string]any{
		"Version": e.opts.Version, "ApiVersion": e.opts.APIVersion, "MinAPIVersion": e.opts.MinAPIVersion, "Os": e.opts.OS, "Arch": "amd64",
	})
}

func (e systemAPI) info(w http.ResponseWriter) {
	e.mu.Lock()
	defer e.mu.Unlock()
	info := map[string]any{
		"ServerVersion": e.opts.Version, "OSType": e.opts.OS, "OperatingSystem": "dockertest", "KernelVersion": "6.1.0", "Architecture": "x86_64",
		"NCPU": e.opts.CPUs, "MemTotal": e.opts.Memory, "LiveRestoreEnabled": e.opts.LiveRestore, "LoggingDriver": "json-file",
		"DockerRootDir": "/var/lib/docker", "Driver": "overlay2", "CgroupDriver": "cgroupfs", "CgroupVersion": "2",
		"DefaultRuntime": "runc", "Containers": len(e.containers), "Images": len(e.images),
		"Runtimes": map[string]any{"io.containerd.runc.v2": map[string]string{"path": "runc"}, "runc": map[string]string{"path": "runc"}, "runsc": map[string]string{"path": "/usr/bin/runsc"}},
	}
	if e.opts.windows() {
		info["DockerRootDir"], info["Driver"], info["Isolation"] = `C:\ProgramData\docker`, "windowsfilter", "process"
		info["KernelVersion"] = fmt.Sprintf("10.0 %d", e.opts.Build)
		delete(info, "CgroupDriver")
		delete(info, "CgroupVersion")
	}
	if e.opts.Snapshotter != "" {
		info["Driver"], info["DriverStatus"] = e.opts.Snapshotter, [][2]string{{"driver-type", "io.containerd.snapshotter.v1"}}
	}
	if e.opts.NoRuntime {
		info["RuncCommit"] = map[string]any{"ID": "N/A"}
	}
	if e.opts.Containerd != "" {
		info["Containerd"] = map[string]any{"Address": e.opts.Containerd}
	}
	answer(w, http.StatusOK, info)
}

func (o *Options) windows() bool { return o.OS == "windows" }

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if body != nil {
		_ = json.NewEncoder(w).Encode(body)
	}
}

// refuse answers with an error in the engine's format.
func refuse(w http.ResponseWriter, status int, format string, args ...any) {
	answer(w, status, map[string]string{"message": fmt.Sprintf(format, args...)})
}

// nextID returns a new id of 64 hex digits. Ids differ in their first digits, so that short ones are unique too.
func (e *Engine) nextID() string {
	e.serial++
	return fmt.Sprintf("%04x%060x", e.serial*0x1003&0xffff, e.serial)
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "0001-01-01T00:00:00Z"
	}
	return t.UTC().Format(time.RFC3339Nano)
}
