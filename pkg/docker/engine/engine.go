// Package engine is the connection to a Docker engine: the client and its API version, a deadline for every call, the classification and wording of
// errors, event streams, and hijacked connections for the streams of a command.
//
//	package --Call(what, request)--> deadline, version --> Docker;   Docker --answer, error--> "cannot <what>: ..."
//
// It supports engines from 1.12 (API 1.24) on. The API version is never pinned; it is negotiated, again after each restart of the engine. A hanging
// request does not block others.
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"github.com/docker/go-connections/tlsconfig"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"k8s.io/utils/clock"
)

// Config says how to reach the engine.
type Config struct {
	Host    string                     // unix:///path, npipe:////./pipe/name, tcp://host:port; "": DOCKER_HOST, or else the platform's default
	OS      string                     // of the containers that the engine must run: linux or windows; "": any
	Timeout time.Duration              // of one request that is expected to be quick; 0: 2 minutes
	Clock   clock.WithDelayedExecution // nil: the system's
}

// Client is the connection to one engine. All methods may be called concurrently.
type Client struct {
	host    string
	os      string
	timeout time.Duration
	clock   clock.WithDelayedExecution
	tls     *tlsconfig.Options
	wrap    func(http.RoundTripper) http.RoundTripper // nil: no wrapper

	client atomic.Pointer[client.Client] // negotiated; nil: not yet, or no longer
	pid    atomic.Int64                  // of the engine; 0: unknown
	self
}

// New returns a Client. It does not connect: if the engine is down, calls fail rather than New. An error means that cfg.Host (or DOCKER_HOST) is
// invalid.
func New(cfg Config) (*Client, error) {
	e := &Client{host: cfg.Host, os: cfg.OS, timeout: cfg.Timeout, clock: cfg.Clock}
	if e.timeout == 0 {
		e.timeout = 2 * time.Minute
	}
	if e.clock == nil {
		e.clock = clock.RealClock{}
	}
	if e.host == "" {
		e.host = os.Getenv(client.EnvOverrideHost)
	}
	if e.host == "" {
		e.host = client.DefaultDockerHost
	}
	if dir := os.Getenv(client.EnvOverrideCertPath); dir != "" && strings.HasPrefix(e.host, "tcp://") {
		e.tls = &tlsconfig.Options{
			CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"),
			InsecureSkipVerify: os.Getenv(client.EnvTLSVerify) == "",
		}
	}
	if _, err := e.dial(); err != nil {
		return nil, err
	}
	return e, nil
}

// Wrap wraps the transport, to record requests. Call it before the first request.
func (e *Client) Wrap(wrap func(http.RoundTripper) http.RoundTripper) { e.wrap = wrap }

// Host is where the engine listens, as in Config.Host.
func (e *Client) Host() string { return e.host }

// Local says whether the engine's files are on this host.
func (e *Client) Local() bool { return !strings.HasPrefix(e.host, "tcp://") }

// Clock is the clock that measures deadlines.
func (e *Client) Clock() clock.WithDelayedExecution { return e.clock }

// Timeout is the deadline of one request that is expected to be quick.
func (e *Client) Timeout() time.Duration { return e.timeout }

// dial returns a client that has not contacted the engine yet.
func (e *Client) dial() (*client.Client, error) {
	transport := &http.Transport{MaxIdleConns: 32, MaxIdleConnsPerHost: 32, IdleConnTimeout: 30 * time.Second}
	if e.tls != nil {
		config, err := tlsconfig.Client(*e.tls)
		if err != nil {
			return nil, fmt.Errorf("cannot load the Docker client certificate (%s): %w", client.EnvOverrideCertPath, err)
		}
		transport.TLSClientConfig = config
	}
	sender := &http.Client{Transport: transport, CheckRedirect: client.CheckRedirect}
	c, err := client.NewClientWithOpts(
		client.WithHTTPClient(sender), client.WithHost(e.host),
		client.WithTraceOptions(otelhttp.WithFilter(traced)))
	if err != nil {
		return nil, fmt.Errorf("docker host %q: must be unix:///path, npipe:////./pipe/name or tcp://host:port: %w", e.host, err)
	}
	if e.wrap != nil {
		sender.Transport = e.wrap(sender.Transport)
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

// traced says whether a request is traced. Nothing collects traces, so the answer should always be no. But Client.Ping alters its request while the
// first answer to it may still be read, and tracing works on a copy.
func traced(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/_ping") }

// API returns a client that speaks the engine's version. The client's own negotiation would make all callers wait for the first caller's ping,
// without a deadline.
func (e *Client) API(ctx context.Context) (*client.Client, error) {
	if c := e.client.Load(); c != nil {
		return c, nil
	}
	return e.Negotiate(ctx)
}

// Negotiate asks the engine for its version and returns a client that speaks it. API returns that client from then on.
func (e *Client) Negotiate(ctx context.Context) (*client.Client, error) {
	c, err := e.dial()
	if err != nil {
		return nil, err
	}
	ping, err := c.Ping(ctx)
	if err != nil {
		return nil, err
	}
	e.answered(ping)
	c.NegotiateAPIVersionPing(ping)
	e.client.Store(c)
	return c, nil
}

// Version is the negotiated version of the API; "": not negotiated yet, or no longer valid.
func (e *Client) Version() string {
	if c := e.client.Load(); c != nil {
		return c.ClientVersion()
	}
	return ""
}

// Within limits ctx to limit on the engine's clock. Call stop when the answer has arrived; the context then lives until cancel.
func (e *Client) Within(ctx context.Context, limit time.Duration) (inner context.Context, stop func(), cancel func()) {
	inner, end := context.WithCancelCause(ctx)
	timer := e.clock.AfterFunc(limit, func() { end(NoAnswer{limit}) })
	return inner, func() { timer.Stop() }, func() { timer.Stop(); end(context.Canceled) }
}

// Call makes one request, or several related ones, within the Client's timeout. what completes "cannot ..." in the error.
func (e *Client) Call(ctx context.Context, what string, do func(context.Context, *client.Client) error) error {
	return e.CallWithin(ctx, e.timeout, what, do)
}

// CallWithin is Call with another deadline. If the engine was replaced by one that refuses the former version of the API, it calls do again.
func (e *Client) CallWithin(ctx context.Context, limit time.Duration, what string, do func(context.Context, *client.Client) error) error {
	inner, _, cancel := e.Within(ctx, limit)
	defer cancel()
	c, err := e.API(inner)
	if err == nil {
		err = do(inner, c)
	}
	if versionRefused(err) {
		e.client.CompareAndSwap(c, nil)
		if c, err = e.API(inner); err == nil {
			err = do(inner, c)
		}
	}
	return e.Explain(ctx, inner, what, err)
}

// Explain words the error of a request within inner, which Within derived from ctx. The end of ctx takes precedence over the deadline, and both over
// the client's error. nil stays nil.
func (e *Client) Explain(ctx, inner context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	var silent NoAnswer
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("the engine did not answer in time: %w", ctx.Err())
	case ctx.Err() != nil:
		err = ctx.Err()
	case errors.As(context.Cause(inner), &silent):
		err = silent
	case versionRefused(err):
		e.client.Store(nil) // the engine was replaced by another version
		err = refused(err)
	}
	return fmt.Errorf("cannot %s: %w", what, err)
}

// Inspect inspects one container, by id or name. The answer has a State and a Config.
func (e *Client) Inspect(ctx context.Context, id string) (container.InspectResponse, error) {
	return e.InspectWithin(ctx, e.timeout, id)
}

// InspectWithin is Inspect with another deadline.
func (e *Client) InspectWithin(ctx context.Context, limit time.Duration, id string) (container.InspectResponse, error) {
	var out container.InspectResponse
	err := e.CallWithin(ctx, limit, "inspect container "+ShortID(id), func(ctx context.Context, c *client.Client) (err error) {
		out, err = c.ContainerInspect(ctx, id)
		if err == nil && (out.ContainerJSONBase == nil || out.State == nil || out.Config == nil) {
			err = errors.New("the engine's answer has no state or config")
		}
		return err
	})
	return out, err
}

// PID is the engine's process; 0 before the first connection, or if its socket does not report it.
func (e *Client) PID() int { return int(e.pid.Load()) }

// met records the process at the other end of a connection.
func (e *Client) met(conn net.Conn) {
	if pid := serverPID(conn); pid > 1 { // 1 holds sockets for other processes
		if last := e.pid.Swap(int64(pid)); last != 0 && last != int64(pid) {
			e.Doubt()
		}
	}
}

// ShortID is an id as Docker's own command line shows it.
func ShortID(id string) string {
	if len(id) > 12 {
		return id[:12]
	}
	return id
}

// Addresses lists a container's addresses in its own network, IPv4 first.
func Addresses(in container.InspectResponse) []netip.Addr {
	if in.NetworkSettings == nil {
		return nil
	}
	var out []netip.Addr
	for _, endpoint := range in.NetworkSettings.Networks {
		if endpoint == nil {
			continue
		}
		for _, text := range []string{endpoint.IPAddress, endpoint.GlobalIPv6Address} {
			if addr, err := netip.ParseAddr(text); err == nil {
				out = append(out, addr)
			}
		}
	}
	slices.SortFunc(out, func(a, b netip.Addr) int {
		return cmp.Or(cmp.Compare(a.BitLen(), b.BitLen()), a.Compare(b))
	})
	return out
}
