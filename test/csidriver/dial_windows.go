package csidriver

import (
	"context"
	"net"

	"github.com/Microsoft/go-winio"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// dialProxy connects to a group of csi-proxy's API.
func dialProxy(group string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+group, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return winio.DialPipeContext(ctx, pipe(group)) }))
}
