// Package server is the last arrow of the kubelet, its face: the HTTPS API on port 10250 and the health check on port 10248.
//
//	API server, Prometheus, curl --HTTPS--> authenticate -> authorize -> route -> Pods (what is here), Engine (logs, exec, attach, dial)
//
// Nothing is served before both gates. Authorization maps method and path to one or two SubjectAccessReviews as upstream does, so
// that roles written for upstream's kubelet mean the same here. Streaming (SPDY and WebSocket) is done by k8s.io/cri-streaming; this
// package adds the two protocols which upstream's kubelet translates (v5 of remote command, SPDY tunnelled in a WebSocket) and ends the
// engine's call when the client is gone. The package keeps no state beside the answers of the API server, in bounded caches.
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

	"github.com/winkube/winkube/pkg/pod"
)

// Pods is what the server asks of the pod manager. All methods may be called concurrently and must not block.
type Pods interface {
	// Pods lists every pod of this node with its current status. The caller changes nothing in them.
	Pods() []*v1.Pod
	// Lookup finds a pod by name and, unless uid is "", by UID; the UID of a static pod and of its mirror mean the same pod.
	// container may be "". false: no such pod here.
	Lookup(namespace, name string, uid types.UID, container string) (Ref, bool)
}

// Ref is a pod of this node and the engine's names for what runs of it.
type Ref struct {
	Pod *v1.Pod // spec and current status; not to be changed
	// ContainerID is the running container of the name that was asked for; "" when it does not run or none was asked for.
	ContainerID string
	// NetworkID is the container that owns the pod's network: the sandbox, or the only container where there is none; "" when it does
	// not run.
	NetworkID string
}

// Observer tells what the engine runs; pod.Runtime is one.
type Observer interface {
	ObserveAll(ctx context.Context) (map[types.UID]pod.Observed, error)
}

// Engine is what the server asks of the container engine. Every call blocks until it is done and ends soon after ctx does.
type Engine interface {
	// Logs writes the log of a container, running or exited, and honours every field of options (v1.PodLogOptions) but Container and
	// Previous. With Follow it ends when the container has. A nil writer: that stream is not wanted. Calls of Write are whole lines.
	Logs(ctx context.Context, containerID string, options *v1.PodLogOptions, stdout, stderr io.Writer) error
	// Exec runs cmd in a running container. in, out and err are nil when not wanted; err is nil with tty. Exit code 0 is nil, another
	// one an error that is or wraps a k8s.io/utils/exec.ExitError. resize is closed or nil when no more sizes come.
	Exec(ctx context.Context, containerID string, cmd []string, in io.Reader, out, err io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error
	// Attach connects to the main process of a running container; otherwise as Exec. It returns nil when that process ends.
	Attach(ctx context.Context, containerID string, in io.Reader, out, err io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error
	// Dial connects to a TCP port as seen from inside the network of a container, on its loopback address where that can be done. ctx
	// bounds the dialling only.
	Dial(ctx context.Context, containerID string, port int) (net.Conn, error)
}

// TokenReviewer is the part of client-go's AuthenticationV1().TokenReviews() that is used.
type TokenReviewer interface {
	Create(ctx context.Context, review *authenticationv1.TokenReview, options metav1.CreateOptions) (*authenticationv1.TokenReview, error)
}

// AccessReviewer is the part of client-go's AuthorizationV1().SubjectAccessReviews() that is used.
type AccessReviewer interface {
	Create(ctx context.Context, review *authorizationv1.SubjectAccessReview, options metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error)
}

// Config is the server's part of the KubeletConfiguration, whose fields are named behind each one.
type Config struct {
	Address  string // address:port; port 0 takes a free one
	NodeName string // the resource that clients must be allowed to reach
	TLS      TLS

	Authentication Authentication
	Authorization  Authorization

	// StreamIdleTimeout ends an exec, attach or port-forward on which nothing moves; 0: 4 h. (streamingConnectionIdleTimeout)
	StreamIdleTimeout time.Duration

	Debugging  bool // exec, attach, portForward, run, containerLogs, runningpods, configz, debug (enableDebuggingHandlers)
	Profiling  bool // debug/pprof (enableProfilingHandler)
	DebugFlags bool // debug/flags/v (enableDebugFlagsHandler)

	// What follows is 0, for the constants of the same names, but in tests.
	headerTimeout, takeTimeout time.Duration
	maxRequests, maxStreams    int
}

// TLS says where the serving certificate comes from: Parts.GetCertificate, or else CertFile and KeyFile, or else a self-signed one.
type TLS struct {
	CertFile, KeyFile string   // read again when they change (tlsCertFile, tlsPrivateKeyFile)
	CertDir           string   // keeps the self-signed kubelet.crt and kubelet.key (--cert-dir)
	MinVersion        uint16   // 0: TLS 1.2 (tlsMinVersion)
	CipherSuites      []uint16 // nil: Go's (tlsCipherSuites)
}

// Authentication is who may be known (authentication).
type Authentication struct {
	ClientCAFile string        // "": no client certificates; read again when it changes (x509.clientCAFile)
	Webhook      bool          // bearer tokens by TokenReview (webhook.enabled)
	CacheTTL     time.Duration // of a good token; a bad one is remembered for 10 s at most. 0: 2 min (webhook.cacheTTL)
	Anonymous    bool          // who shows nothing is system:anonymous (anonymous.enabled)
}

// Mode is how requests are authorized (authorization.mode).
type Mode string

const (
	Webhook     Mode = "Webhook"     // by SubjectAccessReview
	AlwaysAllow Mode = "AlwaysAllow" // whoever is known may do anything
)

// Authorization is who may do what (authorization).
type Authorization struct {
	Mode            Mode          // "": Webhook
	AuthorizedTTL   time.Duration // 0: 5 min (webhook.cacheAuthorizedTTL)
	UnauthorizedTTL time.Duration // 0: 30 s (webhook.cacheUnauthorizedTTL)
}

// Parts is what the server stands on. Pods and Engine are needed, the rest where Config asks for it; a nil handler answers 404.
type Parts struct {
	Pods          Pods
	Engine        Engine
	Observer      Observer // for runningpods
	TokenReviews  TokenReviewer
	AccessReviews AccessReviewer
	// GetCertificate serves a rotating certificate; it takes the place of TLS.CertFile.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	Checks         []Check // beside ping and log; upstream has "syncloop"

	Metrics         http.Handler // /metrics
	MetricsCadvisor http.Handler // /metrics/cadvisor
	MetricsProbes   http.Handler // /metrics/probes
	MetricsResource http.Handler // /metrics/resource
	StatsSummary    http.Handler // /stats/summary
	DebugPods       http.Handler // /debug/pods
	NodeLogs        http.Handler // /logs/
	// Configz is the KubeletConfiguration in use, for /configz; nil: 404. It must hold no secrets.
	Configz any

	Clock clock.PassiveClock // nil: the machine's
}

const (
	defaultStreamIdleTimeout = 4 * time.Hour
	headerTimeout            = 30 * time.Second // with the TLS handshake, which takes its time on a starved host; a client that sends its header byte by byte is not waited for
	bodyTimeout              = 30 * time.Second
	keepAliveTimeout         = 90 * time.Second // as Go's clients keep idle connections
	maxHeaderBytes           = 1 << 20
	stopTimeout              = 5 * time.Second
	lingerTime               = time.Second // for a client to close its side of a stream that is done
)

// Server is the HTTPS API of one node.
type Server struct {
	config Config
	parts  Parts
	checks checks
	// Of what is under way.
	requestBound, streamBound, runBound *bound

	authn    *authenticator
	authz    *authorizer
	listener net.Listener
	http     *http.Server

	life    context.Context // ends every stream and followed log
	stop    context.CancelFunc
	streams sync.WaitGroup // hijacked connections, which http.Server does not count
}

// New checks config, loads certificates and listens; Run must follow. An error names the setting that is wrong.
func New(config Config, parts Parts) (*Server, error) {
	if parts.Clock == nil {
		parts.Clock = clock.RealClock{}
	}
	if config.StreamIdleTimeout == 0 {
		config.StreamIdleTimeout = defaultStreamIdleTimeout
	}
	config.takeTimeout = cmp.Or(config.takeTimeout, takeTimeout)
	s := &Server{
		config: config, parts: parts, checks: append(checks{pingCheck, newLogCheck()}, parts.Checks...),
		requestBound: newBound(cmp.Or(config.maxRequests, maxRequests)),
		streamBound:  newBound(cmp.Or(config.maxStreams, maxStreams)),
		runBound:     newBound(maxRuns),
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
	if s.listener, err = net.Listen("tcp", config.Address); err != nil {
		return nil, fmt.Errorf("cannot listen on %q (address, port): %w", config.Address, err)
	}
	s.life, s.stop = context.WithCancel(context.Background())
	strangers := newCrowd(maxStrangers, sourceStrangers)
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

// Run serves until ctx ends; then it ends streams and followed logs, waits up to 5 s for the rest and closes. It returns nil after that.
func (s *Server) Run(ctx context.Context) error {
	klog.InfoS("Serving the kubelet API", "address", s.Addr())
	failed := make(chan error, 1)
	var serving sync.WaitGroup
	defer serving.Wait() // it ends when the listener is closed
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
	_ = s.http.Close() // what Shutdown has not closed; the listener is closed already
	return err
}

func (s *Server) waitStreams(ctx context.Context) {
	done := make(chan struct{})
	go func() { s.streams.Wait(); close(done) }() // a stream that does not end is left behind after stopTimeout
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Healthz is the plain HTTP health check for the machine's own service manager and for kubeadm (healthzPort, 10248). It is apart from
// Server so that it answers from the very start, before certificates and pods are known.
type Healthz struct {
	listener net.Listener
	http     *http.Server
}

// NewHealthz listens on address (address:port). Run must follow. checks are run beside ping.
func NewHealthz(address string, more ...Check) (*Healthz, error) {
	listener, err := net.Listen("tcp", address)
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

// logWriter takes net/http's own complaints, mostly about handshakes of port scanners.
type logWriter struct{}

func (logWriter) Write(line []byte) (int, error) {
	klog.V(2).InfoS("HTTP server", "message", string(line))
	return len(line), nil
}
