// Package probe runs a single HTTP, TCP, gRPC or exec probe, or an HTTP lifecycle hook, once.
//
//	worker: v1.Probe, container's address -> Probe -> ok, detail -> worker: counters, status, events
//
// It keeps no state: no counters, no connections. The worker decides when to probe and what a result means. Target and Executor mirror
// pod.ProbeTarget and pod.Executor; package kubelet converts between them.
package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/winkube/winkube/pkg/podspec"
)

// maxOutput limits how much of a response body or command output is read, in bytes.
const maxOutput = 10 << 10

// Executor runs a command in a running container. When ctx ends, the call returns ctx's error, or another error if it is unknown whether
// the command ran. (Same method as pod.Executor.)
type Executor interface {
	ExecSync(ctx context.Context, containerID string, argv []string, limit int) (exitCode int, output []byte, err error)
}

// Target is where a probe goes.
type Target struct {
	ContainerID string
	PodIP       netip.Addr         // the host's address with hostNetwork; invalid: the pod has none yet
	Ports       []v1.ContainerPort // to resolve named ports
	Env         []string           // the container's literal variables, NAME=value, for expanding $(NAME) in exec commands
}

// Outcome is the result of a probe.
type Outcome int

const (
	Failure Outcome = iota
	Success
	Warning // counts as success; Detail says what is unusual (Event ProbeWarning)
)

// Result is the result of one probe.
type Result struct {
	Outcome Outcome
	Detail  string // for Events; never a response body of a failed HTTP probe, which may contain secrets
}

// Prober runs probes. It is safe for concurrent use.
type Prober struct {
	exec      Executor
	transport http.RoundTripper
}

// New returns a Prober; exec runs the commands of exec probes.
func New(exec Executor) *Prober { return &Prober{exec: exec, transport: newTransport()} }

// Probe runs handler against target until ctx, the probe's timeout, ends. Failure with nil err means that the probe ran or timed out, and
// failed. err means that it could not run (unknown port name, no such container, an engine that does not answer).
func (p *Prober) Probe(ctx context.Context, handler v1.ProbeHandler, target Target) (Result, error) {
	result, err := p.run(ctx, handler, target)
	result.Detail = clip(result.Detail)
	return result, err
}

// clip makes text safe to show: it comes from the container, which may send anything.
func clip(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxOutput)], "\uFFFD")
}

func (p *Prober) run(ctx context.Context, handler v1.ProbeHandler, target Target) (Result, error) {
	switch {
	case handler.Exec != nil:
		return p.command(ctx, handler.Exec, target)
	case handler.HTTPGet != nil:
		return p.HTTP(ctx, handler.HTTPGet, target)
	case handler.TCPSocket != nil:
		return p.tcp(ctx, handler.TCPSocket, target)
	case handler.GRPC != nil:
		return p.grpc(ctx, handler.GRPC, target)
	}
	return Result{}, errors.New("the probe names no handler; want one of exec, httpGet, tcpSocket, grpc")
}

// values converts variables NAME=value to a map by name.
func values(env []string) map[string]string {
	out := make(map[string]string, len(env))
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		out[name] = value
	}
	return out
}

func (p *Prober) command(ctx context.Context, action *v1.ExecAction, target Target) (Result, error) {
	code, output, err := p.exec.ExecSync(ctx, target.ContainerID, podspec.ExpandAll(action.Command, values(target.Env)), maxOutput)
	switch {
	case err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return Result{Detail: fmt.Sprintf("command %q timed out", action.Command)}, nil
	case err != nil:
		return Result{}, err
	case code != 0:
		return Result{Detail: string(output)}, nil
	}
	return Result{Success, string(output)}, nil
}

func (p *Prober) tcp(ctx context.Context, action *v1.TCPSocketAction, target Target) (Result, error) {
	address, err := target.address(action.Host, action.Port)
	if err != nil {
		return Result{}, err
	}
	conn, err := dial(ctx, "tcp", address)
	if err != nil {
		return Result{Detail: err.Error()}, nil
	}
	conn.Close()
	return Result{Outcome: Success}, nil
}

// address is the address to dial: host (default: the pod's address) and port, a number or the name of a container port.
func (t Target) address(host string, port intstr.IntOrString) (string, error) {
	if host == "" {
		if !t.PodIP.IsValid() {
			return "", errors.New("the pod has no address yet")
		}
		host = t.PodIP.String()
	}
	number, err := t.port(port)
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(host, strconv.Itoa(number)), nil
}

func (t Target) port(port intstr.IntOrString) (int, error) {
	number := port.IntValue() // 0 for a name
	if port.Type == intstr.String && number == 0 {
		for _, p := range t.Ports {
			if p.Name == port.StrVal {
				number = int(p.ContainerPort)
			}
		}
		if number == 0 {
			return 0, fmt.Errorf("no port of the container is named %q", port.StrVal)
		}
	}
	if number < 1 || number > 65535 {
		return 0, fmt.Errorf("port %s: want 1 to 65535", port.String())
	}
	return number, nil
}
