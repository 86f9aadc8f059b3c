package exec

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/winkube/winkube/pkg/docker/engine"
)

// peer is the owner of a container's network.
type peer struct {
	pid       int // on the host
	addresses []netip.Addr
}

// Dial connects to a TCP port of a container. On Linux it uses the loopback address inside the container's network, to reach servers that listen only
// there. On Windows, where no process can enter another's network, it uses the container's address. If the kubelet made the endpoint, the engine does
// not know that address (ADR 27), and Dial uses the first of pod, the pod's addresses. ctx limits only the dialling.
func (e *Executor) Dial(ctx context.Context, containerID string, pod []netip.Addr, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, fmt.Errorf("port %d: must be 1 to 65535", port)
	}
	id := containerID
	for {
		in, err := e.engine.Inspect(ctx, id)
		if err != nil {
			return nil, err
		}
		if !in.State.Running {
			return nil, fmt.Errorf("cannot connect to port %d of container %s: it is not running", port, engine.ShortID(id))
		}
		if in.HostConfig != nil && in.HostConfig.NetworkMode.IsContainer() && in.HostConfig.NetworkMode.ConnectedContainer() != id {
			id = in.HostConfig.NetworkMode.ConnectedContainer()
			continue
		}
		conn, err := dialPeer(ctx, peer{pid: in.State.Pid, addresses: append(engine.Addresses(in), pod...)}, port)
		if err != nil {
			return nil, fmt.Errorf("cannot connect to port %d of container %s: %w", port, engine.ShortID(containerID), err)
		}
		return conn, nil
	}
}
