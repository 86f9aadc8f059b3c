// Package engine is the connection to a Docker engine: the client and the version of the API that it speaks, a deadline for every call,
// the words and classes of its errors, event streams, and connections that become the streams of a command.
//
//	room --Call(what, request)--> deadline, version --> Docker;   Docker --answer, error--> "cannot <what>: ..."
//
// Engines from 1.12 (API 1.24) on are served; the API version is negotiated, again after each restart of the engine, and never pinned.
// A request that hangs holds up no other.
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
	Timeout time.Duration              // of one request that has no reason to take long; 0: 2 minutes
	Clock   clock.WithDelayedExecution // nil: the system's
}

// Client is the connection to one engine. All methods may be called concurrently.
type Client struct {
	host    string
	os      string
	timeout time.Duration
	clock   clock.WithDelayedExecution
	tls     *tlsconfig.Options

	client atomic.Pointer[client.Client] // negotiated; nil: not yet, or no longer
	known  atomic.Pointer[known]         // nil: not asked yet
	pid    atomic.Int64                  // of the engine; 0: not known
}

// New makes a Client. It does not connect: an engine that is not there yet makes the calls fail, not New. An error means that cfg.Host
// (or DOCKER_HOST) is unusable.
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

// Host is where the engine listens, as in Config.Host.
func (e *Client) Host() string { return e.host }

// Local says whether the engine's files are on this host.
func (e *Client) Local() bool { return !strings.HasPrefix(e.host, "tcp://") }

// Clock is the one by which deadlines are measured.
func (e *Client) Clock() clock.WithDelayedExecution { return e.clock }

// Timeout is the deadline of one request that has no reason to take long.
func (e *Client) Timeout() time.Duration { return e.timeout }

// dial makes a client that has not talked to the engine yet.
func (e *Client) dial() (*client.Client, error) {
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

// traced says whether a request is measured. Nothing collects the figures, so none is; but Client.Ping alters its request while the first
// answer to it may still be read, and measuring works on a copy.
func traced(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/_ping") }

// API returns a client that speaks the engine's version. The client's own negotiation would let every caller wait for the first
// one's ping, without a deadline.
func (e *Client) API(ctx context.Context) (*client.Client, error) {
	if c := e.client.Load(); c != nil {
		return c, nil
	}
	return e.Negotiate(ctx)
}

// Negotiate asks the engine for its version and returns a client that speaks it, which API returns from now on.
func (e *Client) Negotiate(ctx context.Context) (*client.Client, error) {
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

// Version is the negotiated version of the API; "": there is none yet, or no longer.
func (e *Client) Version() string {
	if c := e.client.Load(); c != nil {
		return c.ClientVersion()
	}
	return ""
}

// Within bounds ctx by limit on the engine's clock. stop must be called when the answer is there; the context then lives on until cancel.
func (e *Client) Within(ctx context.Context, limit time.Duration) (inner context.Context, stop func(), cancel func()) {
	inner, end := context.WithCancelCause(ctx)
	timer := e.clock.AfterFunc(limit, func() { end(NoAnswer{limit}) })
	return inner, func() { timer.Stop() }, func() { timer.Stop(); end(context.Canceled) }
}

// Call makes one request, or several that belong together, within the Client's timeout. what completes "cannot ..." in the error.
func (e *Client) Call(ctx context.Context, what string, do func(context.Context, *client.Client) error) error {
	return e.CallWithin(ctx, e.timeout, what, do)
}

// CallWithin is Call with another deadline.
func (e *Client) CallWithin(ctx context.Context, limit time.Duration, what string, do func(context.Context, *client.Client) error) error {
	inner, _, cancel := e.Within(ctx, limit)
	defer cancel()
	c, err := e.API(inner)
	if err == nil {
		err = do(inner, c)
	}
	return e.Explain(ctx, inner, what, err)
}

// Explain words the error of a request within inner, which Within made of ctx: the caller's own end comes before the deadline's, and that
// before what the client made of it. nil stays nil.
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
	case strings.Contains(err.Error(), "client version") && strings.Contains(err.Error(), "API version"):
		e.client.Store(nil) // the engine was replaced by another version
	}
	return fmt.Errorf("cannot %s: %w", what, err)
}

// Inspect asks for one container, by id or name. The answer has a State and a Config.
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

// PID is the engine's process; 0 before the first call of it, or where its socket does not say.
func (e *Client) PID() int { return int(e.pid.Load()) }

// met notes which process is at the other end of a connection.
func (e *Client) met(conn net.Conn) {
	if pid := serverPID(conn); pid > 1 { // 1 holds sockets for others
		e.pid.Store(int64(pid))
	}
}

// ShortID is an id as Docker's own command line shows it.
func ShortID(id string) string {
	if len(id) > 12 {
		return id[:12]
	}
	return id
}

// Addresses lists the addresses of a container's own network, IPv4 first.
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
