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

// Dial connects to a TCP port of a container: on Linux on the loopback address inside its network, which reaches servers that listen
// nowhere else; on Windows, where no process can enter another's network, on the container's address. ctx bounds the dialling only.
func (e *Executor) Dial(ctx context.Context, containerID string, port int) (net.Conn, error) {
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
		conn, err := dialPeer(ctx, peer{pid: in.State.Pid, addresses: engine.Addresses(in)}, port)
		if err != nil {
			return nil, fmt.Errorf("cannot connect to port %d of container %s: %w", port, engine.ShortID(containerID), err)
		}
		return conn, nil
	}
}
