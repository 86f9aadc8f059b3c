package main

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// identity is a driver that tells its name.
type identity struct {
	csi.UnimplementedIdentityServer
}

func (identity) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "mock.test"}, nil
}

// dialing is a listener whose connections are made to an address, some at a time, as upstream's mock driver makes them.
type dialing struct {
	net.Listener // its address
	to           string
	free         chan struct{}
}

func (d *dialing) Accept() (net.Conn, error) {
	if _, ok := <-d.free; !ok {
		return nil, net.ErrClosed
	}
	return net.Dial("tcp", d.to)
}

func (d *dialing) Close() error { return nil }

// TestPod: the registrar learns the driver's name through the proxy, from a connection that is still open, and registers it.
func TestPod(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	socket := filepath.Join(dir, "csi.sock")
	clients, err := listen(ctx, socket)
	if err != nil {
		t.Fatal(err)
	}
	drivers, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 2)
	go func() { ended <- forward(ctx, clients, drivers) }()
	address := drivers.Addr().String()
	gone, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gone.Write([]byte("never read")); err != nil {
		t.Fatal(err)
	}
	_ = gone.Close()

	driver := grpc.NewServer()
	csi.RegisterIdentityServer(driver, identity{})
	free := make(chan struct{}, 3)
	for range cap(free) {
		free <- struct{}{}
	}
	go func() { _ = driver.Serve(&dialing{Listener: drivers, to: address, free: free}) }()
	defer func() { close(free); driver.Stop() }()

	go func() {
		ended <- run(ctx, []string{"-v=5", "--csi-address=" + socket, "--kubelet-registration-path=/plugins/csi.sock", "--plugin-registration-path=" + dir, "--timeout=50s"})
	}()
	kubelet, err := grpc.NewClient("unix://"+filepath.Join(dir, "mock.test-reg.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer kubelet.Close()
	client := registration.NewRegistrationClient(kubelet)
	info, err := client.GetInfo(ctx, &registration.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil || info.Name != "mock.test" || info.Type != "CSIPlugin" || info.Endpoint != "/plugins/csi.sock" || strings.Join(info.SupportedVersions, " ") != "1.0.0" {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := client.NotifyRegistrationStatus(ctx, &registration.RegistrationStatus{PluginRegistered: false, Error: "no"}); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "the kubelet refuses the driver: no") {
		t.Errorf("the registrar ended with %v", err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("the proxy ended with %v", err)
	}
}

// TestFlags: what the images cannot do is refused.
func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-endpoint=/csi/csi.sock -nodeid=n1":                        "want -kubelet-registration-path, or -endpoint and -proxy-endpoint",
		"-endpoint=/csi/csi.sock -proxy-endpoint=unix:///x":         `-proxy-endpoint: got "unix:///x", want tcp://:PORT`,
		"--drivername=mock.storage.k8s.io --endpoint=/csi/csi.sock": "flag provided but not defined: -drivername",
	} {
		if err := run(t.Context(), strings.Fields(args)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
}
