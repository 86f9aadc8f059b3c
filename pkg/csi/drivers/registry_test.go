package drivers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/csi"
	"github.com/winkube/winkube/pkg/csi/csitest"
	"github.com/winkube/winkube/pkg/plugins"
	"github.com/winkube/winkube/pkg/plugins/pluginstest"
	"github.com/winkube/winkube/pkg/wake"
)

// counts records what Counted gets.
type counts struct {
	mu    sync.Mutex
	lines []string
}

func (c *counts) counted(driver, method string, _ time.Duration, err error, migrated bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines = append(c.lines, fmt.Sprint(driver, " ", method, " ", status.Code(err), " ", migrated))
}

func newRegistry() (*Registry, *counts) {
	c := &counts{}
	return New("n1", Parts{Counted: c.counted, Clock: clock.RealClock{}}), c
}

// serve has d served on a socket, and returns what it says of itself.
func serve(t *testing.T, d *csitest.Driver) (p plugins.Plugin, stop func()) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	stop, err := d.Serve(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return plugins.Plugin{Type: "CSIPlugin", Name: d.Name(), Endpoint: socket, Versions: []string{"1.0.0"}}, stop
}

func register(t *testing.T, r *Registry, p plugins.Plugin) (release func()) {
	t.Helper()
	release, err := r.Register(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return release
}

func TestRegister(t *testing.T) {
	pluginstest.NeedsSockets(t)
	r, c := newRegistry()
	fake := csitest.New(t, "disk.example.com")
	fake.SetCapabilities(pb.NodeServiceCapability_RPC_EXPAND_VOLUME)
	p, _ := serve(t, fake)
	r.parts.Joined = wake.New()
	release := register(t, r, p)
	select {
	case <-r.parts.Joined:
	default:
		t.Error("Joined was not sent")
	}
	d, err := r.Driver("disk.example.com")
	if err != nil {
		t.Fatal(err)
	}
	if d.Name() != "disk.example.com" || d.NodeID() != "node-of-disk.example.com" ||
		!d.Has(pb.NodeServiceCapability_RPC_EXPAND_VOLUME) || d.Has(pb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		t.Errorf("got %s, %s, %v", d.Name(), d.NodeID(), d.(*driver).has)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dir := t.TempDir()
	publish := &pb.NodePublishVolumeRequest{VolumeId: "v", TargetPath: filepath.Join(dir, "target"), VolumeCapability: &pb.VolumeCapability{}}
	if _, err := d.Node().NodePublishVolume(csi.Migrated(ctx), publish); err != nil {
		t.Error(err)
	}
	fake.Fail("NodeUnpublishVolume", status.Error(codes.Internal, "no"))
	_, err = d.Node().NodeUnpublishVolume(ctx, &pb.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: publish.TargetPath})
	if status.Code(err) != codes.Internal {
		t.Errorf("NodeUnpublishVolume: %v, want the driver's error", err)
	}
	want := `disk.example.com /csi.v1.Node/NodeGetInfo OK false
disk.example.com /csi.v1.Node/NodeGetCapabilities OK false
disk.example.com /csi.v1.Node/NodePublishVolume OK true
disk.example.com /csi.v1.Node/NodeUnpublishVolume Internal false`
	if got := strings.Join(c.lines, "\n"); got != want {
		t.Errorf("counted\n%s\nwant\n%s", got, want)
	}
	release()
	if _, err := r.Driver("disk.example.com"); err == nil || err.Error() != "driver name disk.example.com not found in the list of registered CSI drivers" {
		t.Errorf("after its release: %v", err)
	}
	if _, err := d.Node().NodeGetInfo(ctx, &pb.NodeGetInfoRequest{}); err == nil {
		t.Error("a call of a driver that is gone succeeded")
	}
}

// TestWire: a driver is called by the wire that the registry has.
func TestWire(t *testing.T) {
	r := New("n1", Parts{Counted: func(string, string, time.Duration, error, bool) {}, Clock: clock.RealClock{}, Wire: pluginstest.Loopback})
	socket := filepath.Join(t.TempDir(), "csi.sock")
	listener, err := pluginstest.ListenLoopback(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(csitest.New(t, "smb.csi.k8s.io").ServeOn(listener))
	release := register(t, r, plugins.Plugin{Type: "CSIPlugin", Name: "smb.csi.k8s.io", Endpoint: socket, Versions: []string{"1.0.0"}})
	defer release()
	d, err := r.Driver("smb.csi.k8s.io")
	if err != nil || d.NodeID() != "node-of-smb.csi.k8s.io" {
		t.Fatalf("%v, %v", d, err)
	}
}

// TestNewestWins: of two drivers of one name the last to register is used, whichever goes first.
func TestNewestWins(t *testing.T) {
	pluginstest.NeedsSockets(t)
	for _, oldGoesFirst := range []bool{false, true} {
		r, _ := newRegistry()
		old, next := csitest.New(t, "disk.example.com"), csitest.New(t, "disk.example.com")
		next.SetInfo(&pb.NodeGetInfoResponse{NodeId: "new"})
		oldPlugin, _ := serve(t, old)
		newPlugin, _ := serve(t, next)
		releaseOld, releaseNew := register(t, r, oldPlugin), register(t, r, newPlugin)
		id := func() string {
			d, err := r.Driver("disk.example.com")
			if err != nil {
				return err.Error()
			}
			return d.NodeID()
		}
		if got := id(); got != "new" {
			t.Errorf("with both: %s", got)
		}
		if oldGoesFirst {
			releaseOld()
			if got := id(); got != "new" {
				t.Errorf("without the old: %s", got)
			}
			releaseNew()
		} else {
			releaseNew()
			if got := id(); got != "node-of-disk.example.com" {
				t.Errorf("without the new: %s", got)
			}
			releaseOld()
		}
		if got := r.Names(); len(got) != 0 {
			t.Errorf("in the end: %q", got)
		}
	}
}

func TestRefusedRegistrations(t *testing.T) {
	pluginstest.NeedsSockets(t)
	for _, test := range []struct {
		name     string
		versions []string
		info     *pb.NodeGetInfoResponse
		fail     string
		want     string
	}{
		{name: "Disk", versions: []string{"1.0.0"}, want: `the name of the CSI driver is "Disk": want a DNS name in lower case of at most 63 characters, as in disk.example.com`},
		{name: "../etc", versions: []string{"1.0.0"}, want: `the name of the CSI driver is "../etc"`},
		{name: strings.Repeat("a", 64), versions: []string{"1.0.0"}, want: "at most 63 characters"},
		{name: "a", want: "validation failed for CSI Driver a at endpoint SOCKET: plugin returned an empty list for supported versions"},
		{name: "a", versions: []string{"0.3.0"}, want: `validation failed for CSI Driver a at endpoint SOCKET: none of the versions specified ["0.3.0"] are supported. err=highest supported version reported is 0.3.0, must be v1.x`},
		{name: "a", versions: []string{"2.0.0"}, want: "could not find a highest supported version"},
		{name: "a", versions: []string{"2.0.0", "1.5.0", "junk"}, info: &pb.NodeGetInfoResponse{}, want: "error adding CSI driver node info: driverNodeID must not be empty"},
		{name: "a", versions: []string{"1.0.0"}, info: &pb.NodeGetInfoResponse{NodeId: strings.Repeat("x", 257)}, want: "NodeGetInfo: node_id has 257 characters: want at most 256"},
		{name: "a", versions: []string{"1.0.0"}, info: topology("n", map[string]string{"a b": "c"}), want: `NodeGetInfo: accessible_topology has the key "a b": `},
		{name: "a", versions: []string{"1.0.0"}, info: topology("n", map[string]string{"zone": "b c"}), want: `NodeGetInfo: accessible_topology has zone="b c": `},
		{name: "a", versions: []string{"1.0.0"}, info: topology("n", map[string]string{"zone": "b"}),
			want: `detected topology value collision: driver reported "zone":"b" but existing label is "zone":"a"`},
		{name: "a", versions: []string{"1.0.0"}, fail: "NodeGetInfo", want: "NodeGetInfo: rpc error: code = Unavailable desc = not now"},
		{name: "a", versions: []string{"1.0.0"}, fail: "NodeGetCapabilities", want: "NodeGetCapabilities: rpc error: code = Unavailable desc = not now"},
	} {
		r, _ := newRegistry()
		r.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a"}}})
		fake := csitest.New(t, test.name)
		if test.info != nil {
			fake.SetInfo(test.info)
		}
		fake.Fail(test.fail, status.Error(codes.Unavailable, "not now"))
		p, _ := serve(t, fake)
		p.Versions = test.versions
		_, err := r.Register(t.Context(), p)
		if want := strings.ReplaceAll(test.want, "SOCKET", p.Endpoint); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s %q: got %v, want %s", test.name, test.versions, err, want)
		}
		if len(r.Names()) != 0 {
			t.Errorf("%s %q is registered", test.name, test.versions)
		}
	}
}

func topology(id string, segments map[string]string) *pb.NodeGetInfoResponse {
	return &pb.NodeGetInfoResponse{NodeId: id, AccessibleTopology: &pb.Topology{Segments: segments}}
}

// TestHangingDriver: a driver that does not answer is given up when its socket goes, and delays no other meanwhile.
func TestHangingDriver(t *testing.T) {
	pluginstest.NeedsSockets(t)
	r, _ := newRegistry()
	hung := csitest.New(t, "hung.example.com")
	hung.Hang("NodeGetInfo")
	p, _ := serve(t, hung)
	ctx, gone := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := r.Register(ctx, p)
		ended <- err
	}()
	other, _ := serve(t, csitest.New(t, "other.example.com"))
	register(t, r, other)
	gone()
	if err := <-ended; status.Code(errors.Unwrap(err)) != codes.Canceled {
		t.Errorf("got %v, want Canceled", err)
	}
	if got := fmt.Sprint(r.Names()); got != "[other.example.com]" {
		t.Errorf("registered: %s", got)
	}
}

// TestRestartedDriver: a driver that is started again behind the same socket is found with the next calls.
func TestRestartedDriver(t *testing.T) {
	pluginstest.NeedsSockets(t)
	r, _ := newRegistry()
	fake := csitest.New(t, "disk.example.com")
	p, stop := serve(t, fake)
	register(t, r, p)
	d, err := r.Driver("disk.example.com")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stop()
	if _, err := d.Node().NodeGetInfo(ctx, &pb.NodeGetInfoRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("while it is down: %v, want Unavailable", err)
	}
	stop, err = fake.Serve(p.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	for {
		_, err := d.Node().NodeGetInfo(ctx, &pb.NodeGetInfoRequest{})
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestSlowDriver: a driver that takes its time to answer a connection registers.
func TestSlowDriver(t *testing.T) {
	pluginstest.NeedsSockets(t)
	r, _ := newRegistry()
	p, _ := serve(t, csitest.New(t, "disk.example.com"))
	slow := filepath.Join(t.TempDir(), "s")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", slow)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	behind := p.Endpoint
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			time.Sleep(400 * time.Millisecond) // longer than gRPC's first pauses
			out, err := (&net.Dialer{}).DialContext(t.Context(), "unix", behind)
			if err != nil {
				in.Close()
				return
			}
			go func() { _, _ = io.Copy(out, in); out.Close() }()
			go func() { _, _ = io.Copy(in, out); in.Close() }()
		}
	}()
	p.Endpoint = slow
	register(t, r, p)
}
