// Package csitest is the node service of a CSI driver in memory, which checks what it is asked: the order of the calls of one volume, one call of it
// at a time, the paths. A test can have calls fail, hang, or be answered wrongly, and sees all of them.
//
//	driver := csitest.New(t, "disk.example.com")
//	drivers := csitest.Drivers{driver.Name(): driver}   // in process
//	driver.Serve(socket)                                // or by gRPC
package csitest

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/winkube/winkube/pkg/csi"
)

// Call is one call that the driver received.
type Call struct {
	Method  string // as NodeStageVolume
	Volume  string
	Request any // *pb.NodeStageVolumeRequest ...
}

// Driver is a driver and its node service. It implements csi.Driver without a connection.
type Driver struct {
	t    testing.TB
	name string

	mu        sync.Mutex
	info      *pb.NodeGetInfoResponse
	has       []pb.NodeServiceCapability_RPC_Type
	calls     []Call
	busy      map[string]string                // volume: the method that works on it
	volumes   map[string]*Volume               // by id
	fail      map[string][]error               // by method, the next answers
	hang      map[string]chan struct{}         // by method
	answer    map[string]func(request any) any // by method, instead of the right answer
	mounted   func(volume, path string)        // after a publish
	unmounted func(volume, path string)        // after an unpublish
	usage     map[string][]*pb.VolumeUsage     // by volume
	condition map[string]*pb.VolumeCondition   // by volume
}

// Volume is what the driver has of a volume.
type Volume struct {
	Staged    string            // staging path; "": not staged
	Published []string          // target paths
	Context   map[string]string // of the last publish
	Size      int64             // of the last expansion
}

// New makes a driver that stages, reports figures and expands. What it is asked wrongly fails t.
func New(t testing.TB, name string) *Driver {
	return &Driver{
		t: t, name: name, info: &pb.NodeGetInfoResponse{NodeId: "node-of-" + name},
		has: []pb.NodeServiceCapability_RPC_Type{
			pb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, pb.NodeServiceCapability_RPC_GET_VOLUME_STATS,
			pb.NodeServiceCapability_RPC_EXPAND_VOLUME, pb.NodeServiceCapability_RPC_VOLUME_CONDITION,
		},
		busy: map[string]string{}, volumes: map[string]*Volume{}, fail: map[string][]error{}, hang: map[string]chan struct{}{},
		answer: map[string]func(any) any{}, mounted: func(string, string) {}, unmounted: func(string, string) {},
		usage: map[string][]*pb.VolumeUsage{}, condition: map[string]*pb.VolumeCondition{},
	}
}

// Name implements csi.Driver.
func (d *Driver) Name() string { return d.name }

// NodeID implements csi.Driver.
func (d *Driver) NodeID() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.info.NodeId
}

// Node implements csi.Driver: calls come here directly.
func (d *Driver) Node() pb.NodeClient { return client{d} }

// Has implements csi.Driver.
func (d *Driver) Has(c pb.NodeServiceCapability_RPC_Type) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.has, c)
}

// SetInfo changes what NodeGetInfo answers.
func (d *Driver) SetInfo(info *pb.NodeGetInfoResponse) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.info = info
}

// SetCapabilities changes what NodeGetCapabilities answers, and with it what the driver demands.
func (d *Driver) SetCapabilities(has ...pb.NodeServiceCapability_RPC_Type) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.has = has
}

// SetUsage changes what NodeGetVolumeStats answers for a volume. A nil condition is none.
func (d *Driver) SetUsage(volume string, condition *pb.VolumeCondition, usage ...*pb.VolumeUsage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.usage[volume], d.condition[volume] = usage, condition
}

// OnMount has functions called after each publish and unpublish, as a mount table would change.
func (d *Driver) OnMount(mounted, unmounted func(volume, path string)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mounted, d.unmounted = mounted, unmounted
}

// Fail has the next calls of a method fail, one with each error, without any effect.
func (d *Driver) Fail(method string, errs ...error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail[method] = append(d.fail[method], errs...)
}

// Hang has calls of a method wait until their context ends or resume is called, and then go on.
func (d *Driver) Hang(method string) (resume func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	held := make(chan struct{})
	d.hang[method] = held
	return sync.OnceFunc(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		close(held)
		if d.hang[method] == held {
			delete(d.hang, method)
		}
	})
}

// Lie has a method answer what reply returns, without any effect; nil: the truth again.
func (d *Driver) Lie(method string, reply func(request any) any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer[method] = reply
}

// Calls are all calls until now, or those of some methods.
func (d *Driver) Calls(methods ...string) []Call {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(d.calls), func(c Call) bool { return len(methods) > 0 && !slices.Contains(methods, c.Method) })
}

// Volumes is what the driver has of each volume that is staged or published.
func (d *Driver) Volumes() map[string]Volume {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := map[string]Volume{}
	for id, v := range d.volumes {
		if v.Staged != "" || len(v.Published) > 0 {
			copied := *v
			copied.Published = slices.Clone(v.Published)
			all[id] = copied
		}
	}
	return all
}

// Serve serves identity and node service on a Unix socket until stop is called, which also ends the calls under way.
func (d *Driver) Serve(socket string) (stop func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("cannot serve %s: %w", d.name, err)
	}
	return d.ServeOn(listener), nil
}

// ServeOn serves on a listener until stop is called.
func (d *Driver) ServeOn(listener net.Listener) (stop func()) {
	server := grpc.NewServer()
	pb.RegisterIdentityServer(server, identity{name: d.name})
	pb.RegisterNodeServer(server, service{d: d})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener)
	}()
	return sync.OnceFunc(func() { server.Stop(); <-ended })
}

// Drivers is a registry of drivers, by name.
type Drivers map[string]csi.Driver

// Driver implements csi.Drivers.
func (d Drivers) Driver(name string) (csi.Driver, error) {
	if found, ok := d[name]; ok {
		return found, nil
	}
	return nil, fmt.Errorf("driver name %s not found in the list of registered CSI drivers", name)
}

// wrong fails the test and the call.
func (d *Driver) wrong(code codes.Code, format string, args ...any) error {
	message := fmt.Sprintf(format, args...)
	d.t.Errorf("CSI driver %s: %s", d.name, message)
	return status.Error(code, message)
}

// serve runs one call: it records it, fails or holds it as the test wants, and refuses a second call for a volume.
func serve[Answer any](ctx context.Context, d *Driver, method, volume string, request any, do func() (*Answer, error)) (*Answer, error) {
	d.mu.Lock()
	d.calls = append(d.calls, Call{method, volume, request})
	if other := d.busy[volume]; other != "" && volume != "" {
		d.mu.Unlock()
		return nil, d.wrong(codes.Aborted, "%s of volume %s while %s works on it: want one call at a time", method, volume, other)
	}
	if _, bounded := ctx.Deadline(); !bounded {
		d.mu.Unlock()
		return nil, d.wrong(codes.InvalidArgument, "%s of volume %s has no deadline", method, volume)
	}
	d.busy[volume] = method
	held := d.hang[method]
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		delete(d.busy, volume)
		d.mu.Unlock()
	}()
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
	d.mu.Lock()
	var fails error
	if list := d.fail[method]; len(list) > 0 {
		fails, d.fail[method] = list[0], list[1:]
	}
	lie := d.answer[method]
	d.mu.Unlock()
	if fails != nil {
		return nil, fails
	}
	if lie != nil {
		answer, _ := lie(request).(*Answer)
		return answer, nil
	}
	return do()
}
