// Package server serves the kubelet's HTTPS API on port 10250 and the health check on port 10248.
//
//	API server, Prometheus, curl --HTTPS--> authenticate -> authorize -> route -> Pods (pods of this node), Engine (logs, exec, attach, dial)
//
// Every request must be authenticated and authorized first. Authorization maps method and path to one or two SubjectAccessReviews as upstream does,
// so that roles for upstream's kubelet mean the same here. k8s.io/cri-streaming implements the streams (SPDY and WebSocket); this package adds the
// two protocols that upstream's kubelet translates (v5 of remote command, SPDY tunneled in a WebSocket) and cancels the engine's call when the client
// disconnects. The only state is the API server's answers, in bounded caches.
package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/pod"
)

// Pods is the part of the pod manager that the server needs. All methods may be called concurrently and must not block.
type Pods interface {
	// Pods lists every pod of this node with its current status. The caller must not modify them.
	Pods() []*v1.Pod
	// Lookup finds a pod by name and, unless uid is "", by UID; the UIDs of a static pod and of its mirror identify the same pod. container may be
	// "". false: no such pod on this node.
	Lookup(namespace, name string, uid types.UID, container string) (Ref, bool)
}

// Ref is a pod of this node and the engine's names of its running containers.
type Ref struct {
	Pod *v1.Pod // spec and current status; must not be modified
	// ContainerID is the running container of the requested name; "" if it does not run or none was requested.
	ContainerID string
	// NetworkID is the container that owns the pod's network: the sandbox, or else the only container; "" if it does not run.
	NetworkID string
	PodIPs    []netip.Addr
}

// Observer lists the engine's pods; pod.Runtime implements it.
type Observer interface {
	ObserveAll(ctx context.Context) (map[types.UID]pod.Observed, error)
}

// Engine is the part of the container engine that the server needs. Every call blocks until it is done and ends soon after ctx does.
type Engine interface {
	// Logs writes the log of a container, running or exited, and honors every field of options (v1.PodLogOptions) except Container and Previous. With
	// Follow it ends when the container has. A nil writer discards that stream. Calls of Write are whole lines.
	Logs(ctx context.Context, containerID string, options *v1.PodLogOptions, stdout, stderr io.Writer) error
	// Exec runs cmd in a running container. in, out and err may be nil; err is nil with tty. Exit code 0 is nil, any other an error that is or wraps
	// a k8s.io/utils/exec.ExitError. resize is nil, or closed when no more sizes come.
	Exec(ctx context.Context, containerID string, cmd []string, in io.Reader, out, err io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error
	// Attach connects to the main process of a running container; otherwise as Exec. It returns nil when that process ends.
	Attach(ctx context.Context, containerID string, in io.Reader, out, err io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error
	// Dial connects to a TCP port inside the network of a container: on its loopback address if possible, else on its own address or the first of
	// pod, the pod's addresses. ctx limits only the dialing.
	Dial(ctx context.Context, containerID string, pod []netip.Addr, port int) (net.Conn, error)
}

// TokenReviewer is the part of client-go's AuthenticationV1().TokenReviews() that we use.
type TokenReviewer interface {
	Create(ctx context.Context, review *authenticationv1.TokenReview, options metav1.CreateOptions) (*authenticationv1.TokenReview, error)
}

// AccessReviewer is the part of client-go's AuthorizationV1().SubjectAccessReviews() that we use.
type AccessReviewer interface {
	Create(ctx context.Context, review *authorizationv1.SubjectAccessReview, options metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error)
}

// Config is the server's part of the KubeletConfiguration. The names in parentheses are its fields.
type Config struct {
	Off      bool   // no HTTPS port (enableServer: false)
	Address  string // address:port; port 0 chooses a free one
	NodeName string // the resource that clients need access to
	TLS      TLS

	Authentication Authentication
	Authorization  Authorization

	// StreamIdleTimeout ends an idle exec, attach or port-forward; 0: 4 h. (streamingConnectionIdleTimeout)
	StreamIdleTimeout time.Duration

	Debugging  bool // exec, attach, portForward, run, containerLogs, runningpods, configz, debug (enableDebuggingHandlers)
	Profiling  bool // debug/pprof (enableProfilingHandler)
	DebugFlags bool // debug/flags/v (enableDebugFlagsHandler)

	// Only tests set the following; 0 means the constants of the same names.
	headerTimeout, takeTimeout time.Duration
	maxRequests, maxStreams    int
}

// TLS is the source of the serving certificate: Parts.GetCertificate, or else CertFile and KeyFile, or else a self-signed one.
type TLS struct {
	CertFile, KeyFile string        // reloaded when they change (tlsCertFile, tlsPrivateKeyFile)
	CertDir           string        // stores the self-signed kubelet.crt and kubelet.key (--cert-dir)
	MinVersion        uint16        // 0: TLS 1.2 (tlsMinVersion)
	CipherSuites      []uint16      // nil: Go's (tlsCipherSuites)
	Curves            []tls.CurveID // key exchanges; nil: Go's (tlsCurvePreferences)
}

// Authentication says which credentials are accepted (authentication).
type Authentication struct {
	ClientCAFile string        // "": no client certificates; reloaded when it changes (x509.clientCAFile)
	Webhook      bool          // bearer tokens by TokenReview (webhook.enabled)
	CacheTTL     time.Duration // of an accepted token; a rejected one is cached for 10 s at most. 0: 2 min (webhook.cacheTTL)
	Anonymous    bool          // requests without credentials are system:anonymous (anonymous.enabled)
}

// Mode is how requests are authorized (authorization.mode).
type Mode string

const (
	Webhook     Mode = "Webhook"     // by SubjectAccessReview
	AlwaysAllow Mode = "AlwaysAllow" // every authenticated client may do anything
)

// Authorization configures how permissions are checked (authorization).
type Authorization struct {
	Mode            Mode          // "": Webhook
	AuthorizedTTL   time.Duration // 0: 5 min (webhook.cacheAuthorizedTTL)
	UnauthorizedTTL time.Duration // 0: 30 s (webhook.cacheUnauthorizedTTL)
}

// Parts are the server's dependencies. Pods and Engine are required, others if Config needs them; a nil handler answers 404.
type Parts struct {
	Pods          Pods
	Engine        Engine
	Observer      Observer // for runningpods
	TokenReviews  TokenReviewer
	AccessReviews AccessReviewer
	// GetCertificate returns a rotating certificate; it replaces TLS.CertFile.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Checks         []Check // in addition to ping and log; upstream has "syncloop"

	Metrics         http.Handler // /metrics
	MetricsCadvisor http.Handler // /metrics/cadvisor
	MetricsProbes   http.Handler // /metrics/probes
	MetricsResource http.Handler // /metrics/resource
	StatsSummary    http.Handler // /stats/summary
	DebugPods       http.Handler // /debug/pods
	NodeLogs        http.Handler // /logs/
	// Configz is the current KubeletConfiguration, for /configz; nil: 404. It must not contain secrets.
	Configz any

	Limited *Limited           // counts what limits refuse; nil: not exported
	Clock   clock.PassiveClock // nil: the machine's
}

const (
	defaultStreamIdleTimeout = 4 * time.Hour
	headerTimeout            = 30 * time.Second // includes the TLS handshake, which is slow on an overloaded host; limits clients that send headers byte by byte
	bodyTimeout              = 30 * time.Second
	keepAliveTimeout         = 90 * time.Second // as long as Go's clients keep idle connections
	maxHeaderBytes           = 1 << 20
	stopTimeout              = 5 * time.Second
	lingerTime               = time.Second // for a client to close its side of a finished stream
)

// Server is the HTTPS API of one node.
type Server struct {
	config Config
	parts  Parts
	checks checks
	// Limits of concurrent work.
	requestBound, streamBound, runBound *bound

	authn    *authenticator
	authz    *authorizer
	listener net.Listener
	http     *http.Server

	life    context.Context // ends all streams and followed logs
	stop    context.CancelFunc
	streams sync.WaitGroup // hijacked connections, which http.Server does not count
}

// New checks config, loads certificates and listens; Run must follow. An error names the invalid setting.
func New(config Config, parts Parts) (*Server, error) {
	if parts.Clock == nil {
		parts.Clock = clock.RealClock{}
	}
	if parts.Limited == nil {
		parts.Limited = NewLimited()
	}
	if config.StreamIdleTimeout == 0 {
		config.StreamIdleTimeout = defaultStreamIdleTimeout
	}
	config.takeTimeout = cmp.Or(config.takeTimeout, takeTimeout)
	s := &Server{
		config: config, parts: parts, checks: append(checks{pingCheck, newLogCheck()}, parts.Checks...),
		requestBound: newBound(limitRequests, cmp.Or(config.maxRequests, maxRequests)),
		streamBound:  newBound(limitStreams, cmp.Or(config.maxStreams, maxStreams)),
		runBound:     newBound(limitRuns, maxRuns),
	}
	var err error
	if s.authn, err = newAuthenticator(config.Authentication, parts.TokenReviews, parts.Clock); err != nil {
		return nil, err
	}
	if s.authz, err = newAuthorizer(config.Authorization, config.NodeName, parts.AccessReviews, parts.Clock); err != nil {
		return nil, err
	}
	tlsConfig, err := newTLSConfig(config.TLS, config.NodeName, parts.GetCertificate, s.authn.clientCA, parts.Clock)
	if err != nil {
		return nil, err
	}
	if s.listener, err = daemon.Listen(context.Background(), config.Address); err != nil {
		return nil, fmt.Errorf("cannot listen on %q (address, port): %w", config.Address, err)
	}
	s.life, s.stop = context.WithCancel(context.Background())
	strangers := newCrowd(maxStrangers, sourceStrangers, parts.Limited.count)
	s.http = &http.Server{
		Handler:           s.guard(s.limit(s.routes())),
		TLSConfig:         tlsConfig,
		ReadHeaderTimeout: cmp.Or(config.headerTimeout, headerTimeout),
		ReadTimeout:       bodyTimeout,
		WriteTimeout:      config.StreamIdleTimeout,
		IdleTimeout:       keepAliveTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxH2Streams},
		BaseContext:       func(net.Listener) context.Context { return s.life },
		ConnContext:       strangers.join,
		ConnState:         strangers.changed,
		ErrorLog:          log.New(logWriter{}, "", 0),
	}
	if !slices.Contains(tlsConfig.NextProtos, "h2") {
		s.http.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	}
	return s, nil
}

// Addr is where the server listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Run serves until ctx ends; then it ends streams and followed logs, waits up to 5 s for the rest, closes and returns nil.
func (s *Server) Run(ctx context.Context) error {
	klog.InfoS("Serving the kubelet API", "address", s.Addr())
	failed := make(chan error, 1)
	var serving sync.WaitGroup
	defer serving.Wait() // Serve ends when the listener is closed
	serving.Go(func() { failed <- s.http.ServeTLS(s.listener, "", "") })
	var err error
	select {
	case err = <-failed:
		err = fmt.Errorf("cannot serve on %s: %w", s.Addr(), err)
	case <-ctx.Done():
	}
	s.stop()
	limit, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if s.http.Shutdown(limit) == nil {
		s.waitStreams(limit)
	}
	_ = s.http.Close() // closes what Shutdown left open; the listener is already closed
	return err
}

func (s *Server) waitStreams(ctx context.Context) {
	done := make(chan struct{})
	go func() { s.streams.Wait(); close(done) }() // a stream that does not end is abandoned after stopTimeout
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Healthz is the plain HTTP health check for the service manager and kubeadm (healthzPort, 10248). It is separate from Server so that it answers from
// the start, before certificates and pods are available.
type Healthz struct {
	listener net.Listener
	http     *http.Server
}

// NewHealthz listens on address (address:port), see daemon.Listen. Run must follow. more are checks in addition to ping.
func NewHealthz(ctx context.Context, address string, more ...Check) (*Healthz, error) {
	listener, err := daemon.Listen(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %q (healthzBindAddress, healthzPort): %w", address, err)
	}
	mux := http.NewServeMux()
	append(checks{pingCheck}, more...).install(mux)
	return &Healthz{listener: listener, http: &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       bodyTimeout,
		WriteTimeout:      bodyTimeout,
		IdleTimeout:       keepAliveTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          log.New(logWriter{}, "", 0),
	}}, nil
}

// Addr is where Healthz listens.
func (h *Healthz) Addr() net.Addr { return h.listener.Addr() }

// Run serves until ctx ends and returns nil then.
func (h *Healthz) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = h.http.Close() })
	defer stop()
	if err := h.http.Serve(h.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot serve on %s: %w", h.Addr(), err)
	}
	return nil
}

// logWriter receives net/http's error messages, mostly about handshakes of port scanners.
type logWriter struct{}

func (logWriter) Write(line []byte) (int, error) {
	klog.V(2).InfoS("HTTP server", "message", string(line))
	return len(line), nil
}
