package csi_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/winkube/winkube/pkg/csi"
	"github.com/winkube/winkube/pkg/csi/csitest"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume/volumetest"
	"github.com/winkube/winkube/pkg/wake"
)

// proxy makes links as csi-proxy does for drivers: below the kubelet's directory only, and over nothing that exists.
// Source: kubernetes-csi/csi-proxy pkg/server/filesystem/server.go, pkg/os/filesystem/api.go.
type proxy struct{ root string }

func (p proxy) link(source, target string) error {
	for _, path := range []string{source, target} {
		if !strings.HasPrefix(path, p.root+string(filepath.Separator)) {
			return status.Errorf(codes.InvalidArgument, "path: %s is not within context path: %s", path, p.root)
		}
	}
	return os.Symlink(source, target)
}

// share links to a share, as a mapping of SMB does.
func (proxy) share(remote, local string) error { return os.Symlink(remote, local) }

func (p proxy) rmdir(path string) error { return os.RemoveAll(path) }

// linking is a driver on Windows, as csi-driver-smb is: it replaces the staging directory with a link to a share, and links a pod's target to that.
// Source: kubernetes-csi/csi-driver-smb pkg/smb/nodeserver.go, smb_common_windows.go.
type linking struct {
	*csitest.Driver
	pb.NodeClient
	proxy
	remote  string // what it stages
	publish string // what it publishes instead of what is staged; "": that
	leaves  bool   // its links
}

var _ csi.Driver = &linking{}

func (l *linking) Node() pb.NodeClient { return l }

func (l *linking) NodeStageVolume(ctx context.Context, in *pb.NodeStageVolumeRequest, _ ...grpc.CallOption) (*pb.NodeStageVolumeResponse, error) {
	out, err := l.NodeClient.NodeStageVolume(ctx, in)
	if err == nil && l.remote != "" {
		err = errors.Join(l.rmdir(in.GetStagingTargetPath()), l.share(l.remote, in.GetStagingTargetPath()))
	}
	return out, err
}

func (l *linking) NodeUnstageVolume(ctx context.Context, in *pb.NodeUnstageVolumeRequest, _ ...grpc.CallOption) (*pb.NodeUnstageVolumeResponse, error) {
	out, err := l.NodeClient.NodeUnstageVolume(ctx, in)
	if err == nil && !l.leaves {
		err = l.rmdir(in.GetStagingTargetPath())
	}
	return out, err
}

func (l *linking) NodePublishVolume(ctx context.Context, in *pb.NodePublishVolumeRequest, _ ...grpc.CallOption) (*pb.NodePublishVolumeResponse, error) {
	if fi, err := os.Lstat(in.GetTargetPath()); err == nil && fi.Mode()&fs.ModeSymlink == 0 {
		return nil, status.Errorf(codes.Internal, "%s exists and is no link", in.GetTargetPath())
	}
	err := l.rmdir(in.GetTargetPath())
	if err != nil {
		return nil, err
	}
	out, err := l.NodeClient.NodePublishVolume(ctx, in)
	if err != nil {
		return nil, err
	}
	err = l.rmdir(in.GetTargetPath())
	switch {
	case err != nil:
	case l.publish != "":
		err = os.Symlink(l.publish, in.GetTargetPath())
	default:
		err = l.link(in.GetStagingTargetPath(), in.GetTargetPath())
	}
	return out, err
}

func (l *linking) NodeUnpublishVolume(ctx context.Context, in *pb.NodeUnpublishVolumeRequest, _ ...grpc.CallOption) (*pb.NodeUnpublishVolumeResponse, error) {
	link, err := os.Readlink(in.GetTargetPath())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	out, err := l.NodeClient.NodeUnpublishVolume(ctx, in)
	if err == nil && l.leaves {
		err = os.Symlink(link, in.GetTargetPath())
	}
	return out, err
}

// newWindowsRig is a rig on a Windows Server 2019, with a driver that links. share is what it stages.
func newWindowsRig(t *testing.T) (r *rig, driver *linking, share string) {
	t.Helper()
	share = t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	err := os.Symlink(share, link)
	if fi, statErr := os.Lstat(link); err != nil || statErr != nil || fi.Mode()&fs.ModeSymlink == 0 { // Wine reports success and makes nothing
		t.Skipf("cannot make links here: %v", errors.Join(err, statErr))
	}
	if err := os.WriteFile(filepath.Join(share, "keep"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r = &rig{Rig: volumetest.New(t, pod.Platform{OS: "windows", Build: 17763, SharedNetwork: true}), t: t, driver: csitest.New(t, driverName), changed: wake.New(), boot: "1"}
	r.api = &objects{API: r.API, drivers: map[string]*storagev1.CSIDriver{}, attach: map[string]*storagev1.VolumeAttachment{}, next: make(chan struct{})}
	r.rule(storagev1.CSIDriverSpec{AttachRequired: new(false)})
	r.driver.SetCapabilities(stages)
	driver = &linking{Driver: r.driver, NodeClient: r.driver.Node(), proxy: proxy{r.Host.Root}, remote: share}
	r.drivers = csitest.Drivers{driverName: driver}
	r.restart()
	return r, driver, share
}

func (r *rig) mountAt(p *v1.Pod, path string) (string, error) {
	m, err := r.Mount(p, v1.VolumeMount{Name: "v", MountPath: path})
	return m.HostPath, err
}

// TestWindows: a volume is a link to the staged link to a share. The engine gets what they lead to, links are removed with the last pod, and nothing of
// the share is.
func TestWindows(t *testing.T) {
	r, _, share := newWindowsRig(t)
	a, b := r.pod("a"), r.pod("b")
	for _, p := range []*v1.Pod{a, b, a} {
		if got, want := r.MustPrepare(p)["v"], r.path("pods", string(p.UID), "volumes/kubernetes.io~csi/pv/mount"); got != want {
			t.Errorf("at %s, want %s", got, want)
		}
		if got, err := r.mountAt(p, `C:\data`); got != share || err != nil {
			t.Errorf("mounted %s, %v, want %s", got, err, share)
		}
	}
	if m, err := r.Mount(a, v1.VolumeMount{Name: "v", MountPath: `C:\data`, SubPath: `logs\a`}); err != nil || m.HostPath != filepath.Join(share, "logs", "a") {
		t.Errorf("subPath: %+v, %v", m, err)
	}
	r.want("Stage Publish Publish")
	r.restart()
	r.MustPrepare(a)
	r.want("Stage Publish Publish") // the links are there, and the host has not started again
	r.mustClean("a")
	r.mustClean("b")
	r.want("Stage Publish Publish Unpublish Unpublish Unstage")
	r.nothingLeft()
	if _, err := os.Stat(filepath.Join(share, "keep")); err != nil {
		t.Errorf("the share's file: %v", err)
	}
}

// TestWindowsShare: Docker accepts no share as a source, so that it gets the driver's staged link to it.
func TestWindowsShare(t *testing.T) {
	r, driver, _ := newWindowsRig(t)
	driver.remote = `\\nas\data\`
	p := r.pod("a")
	r.MustPrepare(p)
	if got, err := r.mountAt(p, `C:\data`); got != r.path(stageDir, "globalmount") || err != nil {
		t.Errorf("mounted %s, %v, want the staged link", got, err)
	}
	r.mustClean("a")
	r.nothingLeft()
}

// TestWindowsReboot: links survive a reboot and mappings of shares do not, so that the driver is called again, before the pod's container starts.
func TestWindowsReboot(t *testing.T) {
	r, _, _ := newWindowsRig(t)
	p := r.pod("a")
	r.MustPrepare(p)
	r.boot = "2"
	r.restart()
	driver := r.drivers[driverName]
	delete(r.drivers, driverName)
	if _, err := r.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), "not found in the list of registered CSI drivers") {
		t.Errorf("without the driver: %v", err)
	}
	r.drivers[driverName] = driver
	r.MustPrepare(p)
	r.MustPrepare(p)
	r.restart()
	r.MustPrepare(p)
	r.want("Stage Publish Stage Publish")
	r.mustClean("a")
	r.nothingLeft()
}

// TestWindowsLeftLinks: links that the driver leaves are removed, and never what is behind them.
func TestWindowsLeftLinks(t *testing.T) {
	r, driver, share := newWindowsRig(t)
	p := r.pod("a")
	r.MustPrepare(p)
	driver.leaves = true
	r.mustClean("a")
	r.nothingLeft()
	if _, err := os.Stat(filepath.Join(share, "keep")); err != nil {
		t.Errorf("the share's file: %v", err)
	}
}

// TestWindowsStrayLinks: a pod gets nothing that its driver's links lead to outside of what the driver has staged, the Secrets of other pods least of all.
func TestWindowsStrayLinks(t *testing.T) {
	elsewhere := t.TempDir()
	for about, test := range map[string]struct {
		remote, publish func(r *rig) string
		stages          bool
		want            string // in the error; "": the pod gets it
	}{
		"another pod's volume":        {publish: func(r *rig) string { return r.path("pods/b/volumes/kubernetes.io~secret/s") }, stages: true, want: "pods/b/volumes"},
		"the kubelet's directory":     {publish: func(r *rig) string { return r.Host.Root }, want: "none with the kubelet's own files"},
		"what holds that":             {publish: func(*rig) string { return "/" }, want: "none with the kubelet's own files"},
		"other than what is staged":   {publish: func(*rig) string { return elsewhere }, stages: true, want: "in what the driver has staged"},
		"staged from another pod":     {remote: func(r *rig) string { return r.path("pods/b") }, stages: true, want: "pods/b"},
		"staged from what holds that": {remote: func(*rig) string { return "/" }, stages: true, want: "in what the driver has staged"},
		"another driver's directory":  {publish: func(r *rig) string { return r.path("plugins/other.example.com/v") }, want: "other.example.com"},
		"its driver's directory":      {publish: func(r *rig) string { return r.path("plugins", driverName, "v") }, stages: true},
		"elsewhere, without staging":  {publish: func(*rig) string { return elsewhere }},
		"a part of what is staged":    {publish: func(r *rig) string { return r.path(stageDir, "globalmount/sub") }, stages: true},
	} {
		r, driver, _ := newWindowsRig(t)
		if !test.stages {
			r.driver.SetCapabilities()
			driver.proxy.root = elsewhere
		}
		if test.remote != nil {
			driver.remote = test.remote(r)
		}
		if test.publish != nil {
			driver.publish = test.publish(r)
		}
		p := r.pod("a")
		r.MustPrepare(p)
		got, err := r.mountAt(p, `C:\data`)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(filepath.ToSlash(err.Error()), test.want) {
			t.Errorf("%s: %s, %v, want %q", about, got, err, test.want)
		}
		if err != nil && !strings.Contains(err.Error(), "the driver's link "+r.path("pods/a")) {
			t.Errorf("%s: %v does not name the link", about, err)
		}
		r.mustClean("a")
		r.nothingLeft()
	}
}

// TestWindowsNames: a PersistentVolume whose name no directory can have is refused before the driver is called.
func TestWindowsNames(t *testing.T) {
	r, _, _ := newWindowsRig(t)
	p := r.pod("a")
	r.API.Volumes["pv"].Name = "con"
	if _, err := r.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), "PersistentVolume con: metadata.name: ") {
		t.Errorf("%v", err)
	}
	r.want("")
}
