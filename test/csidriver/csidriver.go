// Package csidriver is a small CSI driver: a volume is a directory below --data, and a mount of it binds that directory. It creates, deletes, expands,
// copies and snapshots volumes, stages and publishes them, reports figures, and makes inline volumes. It registers with the kubelet itself and needs
// no sidecar for that.
//
//	store (volumes and snapshots on disk) <- controller, node <- gRPC on csi.sock
//	                                         registration     <- gRPC on plugins_registry/NAME-reg.sock
//
// A test has calls of one method fail or hang with a file below --data: fail-NodeStageVolume, whose content is the message, or hang-NodeStageVolume. With
// linger-NodeStageVolume a call hangs when its work is done. Each call is a line of calls.log there, written when it begins and when it has ended.
package csidriver

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/winkube/winkube/pkg/volume/mount"
)

// Config is the driver's command line.
type Config struct {
	Name     string // as dir.winkube.test
	NodeID   string
	Endpoint string // path of the socket
	Registry string // the kubelet's plugins_registry; "": it does not register
	Data     string
	Most     int64             // volumes of this node; 0: no limit
	Topology map[string]string // of this node
	// Links: it makes links instead of mounts, as drivers on Windows do.
	Links bool
	// Proxy: csi-proxy makes its links, on Windows.
	Proxy bool
	// Listen makes the sockets; nil: Unix sockets.
	Listen func(ctx context.Context, socket string) (net.Listener, error)
}

// Driver is a driver that has not begun, or serves.
type Driver struct {
	pb.UnimplementedIdentityServer
	cfg    Config
	store  *store
	mounts mount.Mounter
	proxy  *proxied // nil: the driver makes mounts or links itself
	locks  *locks
	log    sync.Mutex
}

// New makes a driver and its data directory.
func New(cfg Config) (*Driver, error) {
	if cfg.Name == "" || cfg.NodeID == "" || cfg.Endpoint == "" || cfg.Data == "" {
		return nil, fmt.Errorf("want --name, --node-id, --endpoint and --data")
	}
	if err := os.MkdirAll(cfg.Data, 0o750); err != nil {
		return nil, err
	}
	d := &Driver{cfg: cfg, store: &store{cfg.Data}, mounts: mount.System(), locks: &locks{busy: map[string]bool{}}}
	if cfg.Links {
		d.mounts = linker{mount.Linked{Links: mount.SystemLinks()}}
	}
	if cfg.Proxy {
		var err error
		if d.proxy, err = newProxied(); err != nil {
			return nil, err
		}
		d.mounts = d.proxy
	}
	if cfg.Listen == nil {
		d.cfg.Listen = func(ctx context.Context, socket string) (net.Listener, error) {
			return (&net.ListenConfig{}).Listen(ctx, "unix", socket)
		}
	}
	return d, nil
}

// linker makes a link where others bind.
type linker struct{ mount.Linked }

// Bind replaces target, an empty directory, with a link to source.
func (linker) Bind(source *os.File, target string) error {
	if err := os.Remove(target); err != nil {
		return err
	}
	return os.Symlink(source.Name(), target)
}

// Run serves until ctx ends, and then removes its sockets.
func (d *Driver) Run(ctx context.Context) error {
	d.note(started)
	service := grpc.NewServer(grpc.UnaryInterceptor(d.intercept))
	pb.RegisterIdentityServer(service, d)
	pb.RegisterControllerServer(service, controller{d: d})
	pb.RegisterNodeServer(service, node{d: d})
	group, ctx := errgroup.WithContext(ctx)
	if err := d.serve(ctx, group, service, d.cfg.Endpoint); err != nil {
		return err
	}
	if d.cfg.Registry != "" {
		register := grpc.NewServer()
		registration.RegisterRegistrationServer(register, &registrar{d: d})
		if err := d.serve(ctx, group, register, filepath.Join(d.cfg.Registry, d.cfg.Name+"-reg.sock")); err != nil {
			return err
		}
	}
	return group.Wait()
}

// serve serves on a socket until ctx ends. A socket that a killed driver left is replaced.
func (d *Driver) serve(ctx context.Context, group *errgroup.Group, server *grpc.Server, socket string) error {
	if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
		return err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := d.cfg.Listen(ctx, socket)
	if err != nil {
		return err
	}
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, grpc.ErrServerStopped) { // ctx may end before it serves
			return err
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		server.Stop()
		return nil
	})
	return nil
}

// registrar answers the kubelet's plugin watcher.
type registrar struct {
	registration.UnimplementedRegistrationServer
	d *Driver
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: r.d.cfg.Name, Endpoint: r.d.cfg.Endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

func (r *registrar) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if s.PluginRegistered {
		r.d.note(registered)
		fmt.Fprintln(os.Stderr, "registered with the kubelet")
	} else {
		fmt.Fprintln(os.Stderr, "not registered with the kubelet:", s.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// intercept logs each call, and has it fail or hang where a test wants that.
func (d *Driver) intercept(ctx context.Context, in any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := path.Base(info.FullMethod)
	subject := ""
	if of, ok := in.(interface{ GetVolumeId() string }); ok {
		subject = of.GetVolumeId()
	}
	d.note("begin", method, subject, pathOf(in))
	out, err := d.disturbed(ctx, method, func() (any, error) { return handler(ctx, in) })
	d.note("end", method, subject, status.Code(err).String())
	return out, err
}

// pathOf is where a call puts a volume, or removes it from; "": the call has no such path.
func pathOf(in any) string {
	switch of := in.(type) {
	case interface{ GetTargetPath() string }: // publishing has a staging path too
		return of.GetTargetPath()
	case interface{ GetStagingTargetPath() string }:
		return of.GetStagingTargetPath()
	}
	return ""
}

// disturbed does what a call does, unless a file says otherwise.
func (d *Driver) disturbed(ctx context.Context, method string, do func() (any, error)) (any, error) {
	if err := d.while(ctx, "hang-"+method); err != nil {
		return nil, err
	}
	if message, err := os.ReadFile(filepath.Join(d.cfg.Data, "fail-"+method)); err == nil {
		return nil, status.Error(codes.Internal, strings.TrimSpace(string(message)))
	}
	out, err := do()
	_ = d.while(ctx, "linger-"+method) // the work is done, whether someone still waits for the answer or not
	return out, err
}

// while waits as long as a file exists below --data; the error is that ctx ended first.
func (d *Driver) while(ctx context.Context, file string) error {
	for {
		if _, err := os.Stat(filepath.Join(d.cfg.Data, file)); err != nil {
			return nil //nolint:nilerr // there is no such file
		}
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (d *Driver) note(words ...string) {
	d.log.Lock()
	defer d.log.Unlock()
	file, err := os.OpenFile(filepath.Join(d.cfg.Data, "calls.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return
	}
	defer file.Close()
	fmt.Fprintln(file, strings.TrimSpace(strings.Join(words, " ")))
}

// GetPluginInfo implements pb.IdentityServer.
func (d *Driver) GetPluginInfo(context.Context, *pb.GetPluginInfoRequest) (*pb.GetPluginInfoResponse, error) {
	return &pb.GetPluginInfoResponse{Name: d.cfg.Name, VendorVersion: "1"}, nil
}

// GetPluginCapabilities implements pb.IdentityServer.
func (d *Driver) GetPluginCapabilities(context.Context, *pb.GetPluginCapabilitiesRequest) (*pb.GetPluginCapabilitiesResponse, error) {
	service := func(kind pb.PluginCapability_Service_Type) *pb.PluginCapability {
		return &pb.PluginCapability{Type: &pb.PluginCapability_Service_{Service: &pb.PluginCapability_Service{Type: kind}}}
	}
	out := &pb.GetPluginCapabilitiesResponse{Capabilities: []*pb.PluginCapability{
		service(pb.PluginCapability_Service_CONTROLLER_SERVICE),
		{Type: &pb.PluginCapability_VolumeExpansion_{VolumeExpansion: &pb.PluginCapability_VolumeExpansion{Type: pb.PluginCapability_VolumeExpansion_ONLINE}}},
	}}
	if len(d.cfg.Topology) > 0 {
		out.Capabilities = append(out.Capabilities, service(pb.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS))
	}
	return out, nil
}

// Probe implements pb.IdentityServer.
func (d *Driver) Probe(context.Context, *pb.ProbeRequest) (*pb.ProbeResponse, error) {
	return &pb.ProbeResponse{}, nil
}

// locks lets one call at a time work on a volume or name; others are refused as the specification has it (ABORTED).
type locks struct {
	mu   sync.Mutex
	busy map[string]bool
}

func (l *locks) take(what string) (release func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.busy[what] {
		return nil, status.Errorf(codes.Aborted, "another call works on %s", what)
	}
	l.busy[what] = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.busy, what)
	}, nil
}
