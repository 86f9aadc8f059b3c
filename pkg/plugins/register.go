package plugins

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// How long a plugin may take. Upstream's kubelet waits 10 s for the connection, 1 s for GetInfo and 5 s for the last call; a slow host needs more
// than a second, and waiting costs no other plugin anything.
const (
	infoTime   = 10 * time.Second
	notifyTime = 5 * time.Second
	mostAnswer = 1 << 20 // bytes
)

// refusedError is why a plugin is not registered before it makes another socket.
type refusedError string

func (e refusedError) Error() string { return string(e) }

// silentError is that no plugin answers.
type silentError struct{ error }

func (e silentError) Unwrap() error { return e.error }

// register asks the plugin of a socket what it is, gives it to its Handler, and reports the outcome to the plugin. Upstream's words stand in what is
// reported.
func (w *Watcher) register(ctx context.Context, s *socket) (func(), error) {
	conn, err := Connect(s.path, w.cfg.Wire, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(mostAnswer)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	client := registration.NewRegistrationClient(conn)
	plugin, err := ask(ctx, client)
	if err != nil {
		return nil, silentError{err}
	}
	handler := w.cfg.Handlers[plugin.Type]
	if handler == nil {
		return nil, refuse(ctx, client, fmt.Sprintf("RegisterPlugin error -- no handler registered for plugin type: %s at socket %s", plugin.Type, s.path))
	}
	if plugin.Endpoint == "" {
		plugin.Endpoint = s.path
	} else if plugin.Endpoint, err = endpoint(w.cfg.Windows, w.cfg.Dir, plugin.Endpoint); err != nil {
		return nil, refuse(ctx, client, fmt.Sprintf("RegisterPlugin error -- plugin registration failed with err: %s %s: %v", plugin.Type, plugin.Name, err))
	}
	release, err := handler.Register(ctx, plugin)
	if err != nil {
		if ctx.Err() != nil { // the socket is gone, and with it whoever would read the answer
			return nil, err
		}
		_ = notify(ctx, client, fmt.Sprintf("RegisterPlugin error -- plugin registration failed with err: %v", err))
		return nil, fmt.Errorf("%s %s: %w", plugin.Type, plugin.Name, err)
	}
	if err := notify(ctx, client, ""); err != nil {
		release()
		return nil, fmt.Errorf("%s %s: cannot report the registration: %w", plugin.Type, plugin.Name, err)
	}
	klog.InfoS("Registered a plugin", "type", plugin.Type, "name", plugin.Name, "endpoint", plugin.Endpoint, "versions", strings.Join(plugin.Versions, ","))
	return release, nil
}

// refuse reports to the plugin why it is not registered, and returns that.
func refuse(ctx context.Context, client registration.RegistrationClient, why string) error {
	_ = notify(ctx, client, why)
	return refusedError(why)
}

// ask has the plugin describe itself.
func ask(ctx context.Context, client registration.RegistrationClient) (Plugin, error) {
	ctx, cancel := context.WithTimeout(ctx, infoTime)
	defer cancel()
	info, err := client.GetInfo(ctx, &registration.InfoRequest{})
	if err != nil {
		return Plugin{}, fmt.Errorf("cannot query it (GetInfo): %w", err)
	}
	return Plugin{Type: info.GetType(), Name: info.GetName(), Endpoint: info.GetEndpoint(), Versions: info.GetSupportedVersions()}, nil
}

// notify reports to the plugin that it is registered, or why it is not.
func notify(ctx context.Context, client registration.RegistrationClient, why string) error {
	ctx, cancel := context.WithTimeout(ctx, notifyTime)
	defer cancel()
	_, err := client.NotifyRegistrationStatus(ctx, &registration.RegistrationStatus{PluginRegistered: why == "", Error: why})
	return err
}

// Connect makes a client of the gRPC service on a socket, by a wire; nil is Unix. It connects with the first call. Servers see the authority
// localhost: those that are not written in Go may refuse a path there.
func Connect(socket string, wire Wire, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	if wire == nil {
		wire = Unix
	}
	options = append(options, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableServiceConfig(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return wire(ctx, socket)
		}))
	conn, err := grpc.NewClient("passthrough:///localhost", options...)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client of %s: %w", socket, err)
	}
	return conn, nil
}
