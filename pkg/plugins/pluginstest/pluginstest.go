// Package pluginstest is a plugin that registers itself with the kubelet, as a test wants it.
package pluginstest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Plugin serves the registration service on one socket.
type Plugin struct {
	registration.UnimplementedRegistrationServer
	// Info is what GetInfo answers. It is not changed while the plugin serves.
	Info *registration.PluginInfo
	// Hang holds every GetInfo until its caller gives up.
	Hang bool
	// FailNotify has the plugin fail as many NotifyRegistrationStatus.
	FailNotify int

	// Statuses has each outcome that was reported.
	Statuses chan *registration.RegistrationStatus
	// Asked has a value for each GetInfo.
	Asked chan struct{}

	mu     sync.Mutex
	failed int
}

// NeedsSockets skips a test where the system has no Unix sockets: Windows before build 17063, and Wine.
func NeedsSockets(t testing.TB) {
	t.Helper()
	const unsupported = syscall.Errno(10047) // WSAEAFNOSUPPORT
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", filepath.Join(dir, "s"))
	switch {
	case errors.Is(err, unsupported):
		t.Skipf("no Unix sockets here: %v", err)
	case err != nil:
		t.Fatal(err)
	}
	_ = listener.Close()
}

// New makes a plugin that says info of itself.
func New(info *registration.PluginInfo) *Plugin {
	return &Plugin{Info: info, Statuses: make(chan *registration.RegistrationStatus, 100), Asked: make(chan struct{}, 100)}
}

// Serve makes the socket and serves until stop is called, which removes it.
func (p *Plugin) Serve(socket string) (stop func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("cannot serve a plugin: %w", err)
	}
	return p.ServeOn(listener), nil
}

// ServeOn serves on a listener until stop is called.
func (p *Plugin) ServeOn(listener net.Listener) (stop func()) {
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, p)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener)
	}()
	return sync.OnceFunc(func() { server.Stop(); <-ended })
}

// GetInfo implements the service.
func (p *Plugin) GetInfo(ctx context.Context, _ *registration.InfoRequest) (*registration.PluginInfo, error) {
	p.Asked <- struct{}{}
	if p.Hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return p.Info, nil
}

// NotifyRegistrationStatus implements the service.
func (p *Plugin) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	p.mu.Lock()
	p.failed++
	fail := p.failed <= p.FailNotify
	p.mu.Unlock()
	if fail {
		return nil, fmt.Errorf("the plugin does not want to know")
	}
	p.Statuses <- status
	return &registration.RegistrationStatusResponse{}, nil
}
