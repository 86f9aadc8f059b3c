// Package docker is the kubelet's last hop to the container engine: it implements pod.Runtime, pod.Images and pod.Executor on the
// Docker API, keeps the engine's networks for package network, and streams for the kubelet's HTTPS server.
//
//	Step --Convert (pure)--> create, start, stop, remove --> Docker
//	Docker --list, inspect--> observe (pure) --> Observed;   Docker --events--> Changes
//
// It is the only importer of Docker's client. Engines from 1.12 (API 1.24) on are served; the API version is negotiated, again after
// each restart of the engine, and never pinned. Containers that do not carry this node's labels, and the name that goes with
// them, are never touched.
package docker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"github.com/docker/go-connections/tlsconfig"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/pod"
)

// Config says how to reach the engine and how to run containers on it.
type Config struct {
	Host string // unix:///path, npipe:////./pipe/name, tcp://host:port; "": DOCKER_HOST, or else the platform's default
	// Node is the value of the label LabelNode on all that this agent makes. Containers with another value, or none, are never touched,
	// so that agents with different names can share an engine.
	Node string
	// Boot is another after each boot of this host, and the value of the label LabelBoot on containers made during it; "": not known.
	Boot        string
	Platform    pod.Platform
	CPUs        int    // of this host, in all of Windows' processor groups, of which engines see one; 0: as many as the engine says
	InfraImage  string // of the sandbox; pulled when it is not present
	LogMaxSize  int64  // bytes of one log file (containerLogMaxSize); 0: no limit
	LogMaxFiles int    // log files per container (containerLogMaxFiles); 0: the engine's default
	// LogsDir is where tools look for pods' logs (upstream's podLogsDir), with containers beside it; "": logs get no names there.
	LogsDir      string
	CgroupParent string // Linux; "": the engine's default
	// SeccompRoot is the directory of localhostProfiles; SeccompDefault makes RuntimeDefault the profile of pods that name none.
	SeccompRoot    string
	SeccompDefault bool
	// HostAddresses gives Target.HostAddresses (Linux); nil: the engine publishes at all addresses, service addresses among them.
	HostAddresses func() ([]netip.Addr, error)
	// HostIPs gives Target.HostIPs; nil: any hostIP will do.
	HostIPs func() ([]netip.Addr, error)
	// CredentialSpecs has this host's registry hold credential specs, by name, where engines look for them: those of want, and no other whose
	// name begins with prefix (Windows); want is not kept. nil: there is no registry.
	CredentialSpecs func(prefix string, want map[string]string) error
	// Hash gives Container.Hash; nil: the hash stays empty.
	Hash func(*v1.Container) string

	CallTimeout          time.Duration // of one request that has no reason to take long; 0: 2 minutes
	StopSlack            time.Duration // how much longer than its grace period a stop may take; 0: 30 seconds
	PullProgressDeadline time.Duration // a pull without progress for so long is given up; 0: 1 minute
	Clock                clock.WithDelayedExecution
}

// Engine is a Docker engine. All methods may be called concurrently; a request that hangs holds up no other.
type Engine struct {
	cfg   Config
	host  string
	tls   *tlsconfig.Options
	clock clock.WithDelayedExecution

	client       atomic.Pointer[client.Client] // negotiated; nil: not yet, or no longer
	cpus         atomic.Int64                  // of the engine's host; 0: not asked yet
	root         atomic.Value                  // string: the engine's data directory; nothing: not asked yet
	swept        sync.Once                     // of names of logs that are gone
	sweptHolders atomic.Bool                   // see sweepHolders
	specs        heldSpecs
	specsSwept   sync.Once // see sweepSpecs
	accounts     accountCache
	recursive    atomic.Bool  // see RecursiveReadOnly
	hyperv       atomic.Bool  // see HyperV
	minOOM       atomic.Int64 // the lowest oom_score_adj that the host allows, as far as known
	cache        cache
	files        fileCache
	pid          atomic.Int64 // of the engine; 0: not known
	images       imageCache
	warnOOM      sync.Once
	observers    int         // how many pods ObserveAll inspects at once
	begun        atomic.Bool // ObserveAll has succeeded once: commands of former agents have been seen to
	kill         func(pid int, containerID string)

	strangersLock sync.Mutex
	strangers     map[string]error // see tellStrangers
}

var (
	_ pod.Runtime  = (*Engine)(nil)
	_ pod.Images   = (*Engine)(nil)
	_ pod.Executor = (*Engine)(nil)
)

// New makes an Engine. It does not connect: an engine that is not there yet makes the calls fail, not New. An error means that
// cfg.Host (or DOCKER_HOST) is unusable.
func New(cfg Config) (*Engine, error) {
	e := &Engine{cfg: cfg, host: cfg.Host, clock: cfg.Clock, observers: 8, kill: killTree}
	if e.host == "" {
		e.host = os.Getenv(client.EnvOverrideHost)
	}
	if e.host == "" {
		e.host = client.DefaultDockerHost
	}
	if e.clock == nil {
		e.clock = clock.RealClock{}
	}
	setDefault(&e.cfg.CallTimeout, 2*time.Minute)
	setDefault(&e.cfg.StopSlack, 30*time.Second)
	setDefault(&e.cfg.PullProgressDeadline, time.Minute)
	if dir := os.Getenv(client.EnvOverrideCertPath); dir != "" && strings.HasPrefix(e.host, "tcp://") {
		e.tls = &tlsconfig.Options{
			CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"),
			InsecureSkipVerify: os.Getenv(client.EnvTLSVerify) == "",
		}
	}
	e.minOOM.Store(minOOMScoreAdj)
	e.cache.init()
	if _, err := e.dial(); err != nil {
		return nil, err
	}
	return e, nil
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}

// dial makes a client that has not talked to the engine yet.
func (e *Engine) dial() (*client.Client, error) {
	transport := &http.Transport{MaxIdleConns: 32, MaxIdleConnsPerHost: 32, IdleConnTimeout: 30 * time.Second}
	if e.tls != nil {
		config, err := tlsconfig.Client(*e.tls)
		if err != nil {
			return nil, fmt.Errorf("cannot load the Docker client certificate (%s): %w", client.EnvOverrideCertPath, err)
		}
		transport.TLSClientConfig = config
	}
	c, err := client.NewClientWithOpts(
		client.WithHTTPClient(&http.Client{Transport: transport, CheckRedirect: client.CheckRedirect}), client.WithHost(e.host),
		client.WithTraceOptions(otelhttp.WithFilter(traced)))
	if err != nil {
		return nil, fmt.Errorf("docker host %q: must be unix:///path, npipe:////./pipe/name or tcp://host:port: %w", e.host, err)
	}
	dial := transport.DialContext // set by WithHost
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if h, ok := ctx.Value(hijackKey{}).(*hijack); ok && err == nil {
			h.adopt(conn)
		}
		if err == nil {
			e.met(conn)
		}
		return conn, err
	}
	return c, nil
}

// api returns a client that speaks the engine's version. The client's own negotiation would let every caller wait for the first
// one's ping without a deadline of its own.
func (e *Engine) api(ctx context.Context) (*client.Client, error) {
	if c := e.client.Load(); c != nil {
		return c, nil
	}
	return e.negotiate(ctx)
}

func (e *Engine) negotiate(ctx context.Context) (*client.Client, error) {
	c, err := e.dial()
	if err != nil {
		return nil, err
	}
	ping, err := c.Ping(ctx)
	if err != nil {
		return nil, err
	}
	c.NegotiateAPIVersionPing(ping)
	e.client.Store(c)
	return c, nil
}

// silence is the cause of a request's end when the engine did not answer in time.
type silence struct{ limit time.Duration }

func (s silence) Error() string { return fmt.Sprintf("the engine did not answer within %v", s.limit) }

// Timeout makes silence a timeout for those who ask.
func (silence) Timeout() bool { return true }

// within bounds ctx by limit on the engine's clock. stop must be called when the answer is there; the context then lives on until cancel.
func (e *Engine) within(ctx context.Context, limit time.Duration) (inner context.Context, stop func(), cancel func()) {
	inner, end := context.WithCancelCause(ctx)
	timer := e.clock.AfterFunc(limit, func() { end(silence{limit}) })
	return inner, func() { timer.Stop() }, func() { timer.Stop(); end(context.Canceled) }
}

// call makes one request, or several that belong together, within limit. what completes "cannot ..." in the error.
func (e *Engine) call(ctx context.Context, limit time.Duration, what string, do func(context.Context, *client.Client) error) error {
	inner, _, cancel := e.within(ctx, limit)
	defer cancel()
	c, err := e.api(inner)
	if err == nil {
		err = do(inner, c)
	}
	return e.explain(ctx, inner, what, err)
}

// traced says whether a request is measured. Nobody collects the figures, so none is; but Client.Ping alters its request while the first
// answer to it may still be read, and measuring goes by a copy.
func traced(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/_ping") }

// explain words the error of a request: the caller's own end comes before the deadline's, and that before what the client made of it.
func (e *Engine) explain(ctx, inner context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	var silent silence
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("the engine did not answer in time: %w", ctx.Err())
	case ctx.Err() != nil:
		err = ctx.Err()
	case errors.As(context.Cause(inner), &silent):
		err = silent
	case strings.Contains(err.Error(), "client version") && strings.Contains(err.Error(), "API version"):
		e.client.Store(nil) // the engine was replaced by another version
	}
	return fmt.Errorf("cannot %s: %w", what, err)
}

// Info is what the engine says of itself and its host.
type Info struct {
	Version         string // 20.10.24
	APIVersion      string // as negotiated
	OS              string // linux or windows
	OSName          string // Debian GNU/Linux 12 (bookworm)
	KernelVersion   string
	Architecture    string // as the engine says: x86_64
	Root            string // where images and containers are stored
	StorageDriver   string
	LoggingDriver   string
	CgroupDriver    string // cgroupfs or systemd; "" on Windows
	CgroupVersion   string // 1 or 2; "" where the engine does not tell (then it is 1) and on Windows
	Isolation       string // Windows: process or hyperv
	LiveRestore     bool
	CPUs            int
	MemoryTotal     int64 // bytes
	SecurityOptions []string
	Runtimes        []string // sorted: what the handler of a RuntimeClass may be; none on Windows
}

// Info asks the engine about itself. One that runs containers of another system than Config.Platform's is an error, with what it told.
func (e *Engine) Info(ctx context.Context) (Info, error) {
	var out Info
	err := e.call(ctx, e.cfg.CallTimeout, "ask the engine about itself", func(ctx context.Context, c *client.Client) error {
		info, err := c.Info(ctx)
		if err != nil {
			return err
		}
		out = Info{
			Version: info.ServerVersion, APIVersion: c.ClientVersion(), OS: info.OSType, OSName: info.OperatingSystem, KernelVersion: info.KernelVersion,
			Architecture: info.Architecture, Root: info.DockerRootDir, StorageDriver: info.Driver, LoggingDriver: info.LoggingDriver,
			CgroupDriver: info.CgroupDriver, CgroupVersion: info.CgroupVersion, Isolation: string(info.Isolation), LiveRestore: info.LiveRestoreEnabled,
			CPUs: info.NCPU, MemoryTotal: info.MemTotal, SecurityOptions: info.SecurityOptions,
		}
		if out.OS == "windows" {
			out.CgroupDriver, out.CgroupVersion = "", ""
		} else {
			out.Runtimes = slices.DeleteFunc(slices.Sorted(maps.Keys(info.Runtimes)), func(name string) bool {
				return len(validation.IsDNS1123Label(name)) > 0 // no handler can have that name
			})
		}
		e.root.Store(info.DockerRootDir)
		e.recursive.Store(recursiveReadOnly(out))
		e.hyperv.Store(out.Isolation == "hyperv")
		e.cpus.Store(int64(info.NCPU))
		return nil
	})
	if want := e.cfg.Platform.OS; err == nil && out.OS != "" && want != "" && out.OS != want {
		err = fmt.Errorf("the engine at %s runs containers of %s, and this agent is for %s: switch Docker to containers of %[3]s", e.host, out.OS, want)
	}
	return out, err
}

// Root is where the engine keeps images and containers, as it said last.
func (e *Engine) Root(ctx context.Context) (string, error) {
	if root, known := e.root.Load().(string); known {
		return root, nil
	}
	info, err := e.Info(ctx)
	return info.Root, err
}

// inspect asks for one container.
func (e *Engine) inspect(ctx context.Context, id string) (container.InspectResponse, error) {
	return e.inspectWithin(ctx, e.cfg.CallTimeout, id)
}

func (e *Engine) inspectWithin(ctx context.Context, limit time.Duration, id string) (container.InspectResponse, error) {
	var out container.InspectResponse
	err := e.call(ctx, limit, "inspect container "+short(id), func(ctx context.Context, c *client.Client) (err error) {
		out, err = c.ContainerInspect(ctx, id)
		if err == nil && (out.ContainerJSONBase == nil || out.State == nil || out.Config == nil) {
			err = errors.New("the engine's answer has no state or config")
		}
		return err
	})
	return out, err
}

// short is an id as Docker's own command line shows it.
func short(id string) string {
	if len(id) > 12 {
		return id[:12]
	}
	return id
}
