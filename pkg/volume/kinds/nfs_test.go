package kinds_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/kinds"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

// nfsHost has mount(8) of the Rig mount at its last argument, and returns the command lines.
func nfsHost(r *volumetest.Rig) *[]string {
	var ran []string
	r.Program = func(_ context.Context, name string, args ...string) error {
		line := strings.Join(append([]string{name}, args...), " ")
		ran = append(ran, strings.ReplaceAll(line, r.Host.Root, "ROOT"))
		r.Kernel.Add(args[len(args)-1], "")
		return nil
	}
	return &ran
}

// TestNFS: an NFS volume, inline and behind a claim, is mounted once with its options, shown to containers, and unmounted when the pod ends, also by an agent
// that knows only what lies on disk.
func TestNFS(t *testing.T) {
	r := volumetest.New(t, volumetest.Linux())
	ran := nfsHost(r)
	inline := volumetest.Vol("inline", v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "fd00::5", Path: "/export/a b", ReadOnly: true}})
	p := volumetest.Pod(inline, volumetest.ClaimVol(false))
	_, pv := r.Bind("data", v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "files.example", Path: "/export"}})
	pv.Spec.MountOptions = []string{"nfsvers=4.1", "hard"}
	for range 3 {
		paths := r.MustPrepare(p)
		for _, name := range []string{"inline", "v"} {
			m, err := r.Mount(p, v1.VolumeMount{Name: name, MountPath: "/x"})
			if want := filepath.Join(r.Host.Root, "pods/uid-1/volumes/kubernetes.io~nfs", name); err != nil || paths[name] != want || m.HostPath != want || m.ReadOnly != (name == "inline") {
				t.Errorf("%s: %s, %+v, %v; want %s", name, paths[name], m, err, want)
			}
		}
		r.Restart() // the next round knows only the mount table
	}
	want := []string{
		"mount -t nfs -o ro -- [fd00::5]:/export/a b ROOT/pods/uid-1/volumes/kubernetes.io~nfs/inline",
		"mount -t nfs -o nfsvers=4.1,hard -- files.example:/export ROOT/pods/uid-1/volumes/kubernetes.io~nfs/v",
	}
	if !slices.Equal(*ran, want) {
		t.Errorf("ran\n%s\nwant\n%s", strings.Join(*ran, "\n"), strings.Join(want, "\n"))
	}
	r.MustPrepare(p)
	places, err := r.Places(p)
	if err != nil || len(places) != 2 || !places[0].Own || places[1].Claim != "data" {
		t.Errorf("measured: %+v, %v", places, err)
	}
	r.API.Claims, r.API.Volumes, r.API.Down = nil, nil, errors.New("connection refused")
	r.Restart()
	for range 2 {
		if err := r.Clean(t.Context(), p.UID); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(r.Dir(p.UID)); !errors.Is(err, os.ErrNotExist) || len(r.Kernel.Points) > 0 || len(r.Kernel.Forced) > 0 {
		t.Errorf("left: %v, mounts %q, forced %q", err, r.Kernel.Points, r.Kernel.Forced)
	}
}

// TestNFSClaimReadOnly: a pod that uses its claim read-only mounts so.
func TestNFSClaimReadOnly(t *testing.T) {
	r := volumetest.New(t, volumetest.Linux())
	ran := nfsHost(r)
	r.Bind("data", v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "10.0.0.5", Path: "/"}})
	p := volumetest.Pod(volumetest.ClaimVol(true))
	r.MustPrepare(p)
	if m, err := r.Mount(p, v1.VolumeMount{Name: "v", MountPath: "/x"}); err != nil || !m.ReadOnly || !strings.HasPrefix((*ran)[0], "mount -t nfs -o ro -- 10.0.0.5:/ ") {
		t.Errorf("%+v, %v, %q", m, err, *ran)
	}
}

// TestNFSRefused: what a pod says is never an option of mount(8), and a host without mount.nfs says what to install.
func TestNFSRefused(t *testing.T) {
	for _, c := range []struct{ server, path, fails, want string }{
		{"", "/x", "", `nfs.server: "": want a host name or an address`},
		{"-osuid", "/x", "", `nfs.server: "-osuid": want a host name`},
		{"a b", "/x", "", `nfs.server: "a b": want a host name`},
		{"a/b", "/x", "", `nfs.server: "a/b": want a host name`},
		{"files", "x", "", `nfs.path: "x": want an absolute path`},
		{"files", "/a\nb", "", `nfs.path: "/a\nb": want an absolute path`},
		{"files", "/x", "mount: /x: bad option; for several filesystems (e.g. nfs, cifs) you might need a /sbin/mount.<type> helper program.", "NFS server files: mount: /x: bad option"},
		{"files", "/x", "mount: unknown filesystem type 'nfs'.", "want mount.nfs on this node"},
		{"files", "/x", "mount: a /sbin/mount.<type> helper program.", "install nfs-common (Debian, Ubuntu) or nfs-utils (RHEL, SUSE)"},
		{"files", "/x", "mount.nfs: access denied by server while mounting files:/x", "NFS server files: mount.nfs: access denied by server"},
	} {
		r := volumetest.New(t, volumetest.Linux())
		r.Program = func(context.Context, string, ...string) error { return errors.New(c.fails) }
		p := volumetest.Pod(volumetest.Vol("v", v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: c.server, Path: c.path}}))
		_, err := r.Prepare(t.Context(), p)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "access denied") && strings.Contains(err.Error(), "install") {
			t.Errorf("%q %q: %v, want %s", c.server, c.path, err, c.want)
		}
		if err := r.Clean(t.Context(), p.UID); err != nil {
			t.Error(err)
		}
	}
}

// TestNFSGivenUp: a pod is deleted while mount(8) waits for the server. Its end waits for mount(8), and unmounts what it has mounted in the end.
func TestNFSGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := volumetest.New(t, volumetest.Linux())
		began, answer := make(chan struct{}), make(chan struct{})
		r.Program = func(_ context.Context, _ string, args ...string) error {
			close(began)
			<-answer
			r.Kernel.Add(args[len(args)-1], "")
			return nil
		}
		p := volumetest.Pod(volumetest.Vol("v", v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "files", Path: "/x"}}))
		ctx, cancel := context.WithCancel(t.Context())
		prepared := make(chan error, 1)
		go func() {
			_, err := r.Prepare(ctx, p)
			prepared <- err
		}()
		<-began
		cancel()
		if err := <-prepared; !errors.Is(err, context.Canceled) {
			t.Errorf("a pod that is deleted: %v", err)
		}
		cleaned := make(chan error, 1)
		go func() { cleaned <- r.Clean(t.Context(), p.UID) }()
		synctest.Wait()
		select {
		case err := <-cleaned:
			t.Fatalf("cleaned while mount still runs: %v", err)
		default:
		}
		close(answer)
		if err := <-cleaned; err != nil || len(r.Kernel.Points) > 0 {
			t.Errorf("%v, mounts %q", err, r.Kernel.Points)
		}
	})
}

// TestNFSServerGone: an unmount that the server does not answer is forced after a while, and the pod ends.
func TestNFSServerGone(t *testing.T) {
	r := volumetest.New(t, volumetest.Linux())
	nfsHost(r)
	p := volumetest.Pod(volumetest.Vol("v", v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "files", Path: "/x"}}))
	dir := r.MustPrepare(p)["v"]
	r.Kernel.Hung = make(chan struct{})
	k := kinds.NewNFS(&r.Host, r, time.Millisecond)
	manager, err := volume.New(r.Host, volume.Parts{Claims: r.API, Kinds: []volume.Kind{k}, Clock: r.Clock, Prepared: r.Prepared})
	if err != nil {
		t.Fatal(err)
	}
	if err := manager.Clean(t.Context(), p.UID); err != nil || !slices.Equal(r.Kernel.Forced, []string{dir}) || len(r.Kernel.Points) > 0 {
		t.Errorf("%v, forced %q, mounts %q", err, r.Kernel.Forced, r.Kernel.Points)
	}
}
