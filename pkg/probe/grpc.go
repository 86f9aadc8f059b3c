package probe

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// maxHealthAnswer limits the size of a container's response and of its headers, in bytes.
const maxHealthAnswer = 64 << 10

// grpc calls the service grpc.health.v1.Health, without encryption (API field GRPCAction). Every status but SERVING is a failure.
func (p *Prober) grpc(ctx context.Context, action *v1.GRPCAction, target Target) (Result, error) {
	address, err := target.address("", intstr.FromInt32(action.Port))
	if err != nil {
		return Result{}, err
	}
	// Connect first: the library would retry a refused connection until ctx ends.
	raw, err := dial(ctx, "tcp", address)
	if err != nil {
		return Result{Detail: fmt.Sprintf("cannot connect to %s: %v", address, err)}, nil
	}
	first := make(chan net.Conn, 1)
	first <- raw
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithUserAgent(probeAgent),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableServiceConfig(),
		grpc.WithNoProxy(),
		// A health response has a few bytes. Fixed windows do not grow with what the container sends.
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxHealthAnswer)),
		grpc.WithMaxHeaderListSize(maxHealthAnswer),
		grpc.WithInitialWindowSize(maxHealthAnswer),
		grpc.WithInitialConnWindowSize(maxHealthAnswer),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			select {
			case c := <-first:
				return c, nil
			default:
				return nil, fmt.Errorf("%s closed the connection", address)
			}
		}))
	if err != nil {
		raw.Close()
		return Result{}, fmt.Errorf("cannot make a client for %s: %w", address, err)
	}
	defer func() {
		conn.Close()
		select {
		case c := <-first: // never used
			c.Close()
		default:
		}
	}()
	request := &grpc_health_v1.HealthCheckRequest{}
	if action.Service != nil {
		request.Service = *action.Service
	}
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, request)
	switch status.Code(err) {
	case codes.OK:
	case codes.Unimplemented:
		return Result{Detail: "the server does not implement the gRPC health protocol (grpc.health.v1.Health): " + status.Convert(err).Message()}, nil
	case codes.DeadlineExceeded:
		return Result{Detail: "the health call did not end within the probe's timeout"}, nil
	default:
		return Result{Detail: fmt.Sprintf("the health call failed: %v", err)}, nil
	}
	if answer.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		return Result{Detail: fmt.Sprintf("service unhealthy (responded with %q)", answer.Status)}, nil
	}
	return Result{Success, "service healthy"}, nil
}
