package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// registrar registers a driver with the kubelet, as the plugin watcher expects it of a driver's socket in plugins_registry.
type registrar struct {
	registration.UnimplementedRegistrationServer
	driver, endpoint, directory string
	patience                    time.Duration
	name                        string
	refused                     chan error
}

// run registers the driver until ctx ends or the kubelet refuses it.
func (r *registrar) run(ctx context.Context) error {
	var err error
	if r.name, err = r.ask(ctx); err != nil {
		return err
	}
	r.refused = make(chan error, 1)
	l, err := listen(ctx, filepath.Join(r.directory, r.name+"-reg.sock"))
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, r)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	defer server.Stop()
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return err
	case err := <-r.refused:
		server.GracefulStop() // the kubelet gets its answer
		return err
	}
}

// ask returns the driver's name, as soon as it answers.
func (r *registrar) ask(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, r.patience)
	defer cancel()
	connection, err := grpc.NewClient("unix://"+r.driver, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return "", err
	}
	defer connection.Close()
	info, err := csi.NewIdentityClient(connection).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return "", fmt.Errorf("the driver at %s does not answer: %w", r.driver, err)
	}
	return info.GetName(), nil
}

// GetInfo answers the kubelet.
func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: r.name, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus ends the program if the kubelet refuses the driver; its pod's kubelet starts it again.
func (r *registrar) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !s.GetPluginRegistered() {
		select {
		case r.refused <- errors.New("the kubelet refuses the driver: " + s.GetError()):
		default:
		}
	}
	return &registration.RegistrationStatusResponse{}, nil
}
