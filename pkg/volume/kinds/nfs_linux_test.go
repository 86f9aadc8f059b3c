package kinds_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/volume/mount"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

// nfsHelper is what mount(8) calls for NFS, with the arguments that mount(8) of util-linux documents: spec, directory, options. Servers are directories
// of the test. A kernel without NFS cannot do more.
const nfsHelper = `#!/bin/sh
set -eu
spec=$1 dir=$2 options=
shift 2
while [ $# -gt 0 ]; do
	case $1 in
	-o) options=$2; shift ;;
	*) echo "mount.nfs: unexpected argument $1" >&2; exit 1 ;;
	esac
	shift
done
server=${spec%%:*} export=${spec#*:}
[ -d "$SERVERS/$server$export" ] || { echo "mount.nfs: access denied by server while mounting $spec" >&2; exit 32; }
mount --bind "$SERVERS/$server$export" "$dir"
case ,$options, in *,ro,*) mount -o remount,bind,ro "$dir" ;; esac
`

// inNFSHost runs the test again in a new mount namespace, where /sbin has mount.nfs, and reports whether it is there.
func inNFSHost(t *testing.T) bool {
	t.Helper()
	if os.Getenv("WINKUBE_NFS_HOST") != "" {
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root for mounts")
	}
	// The memory is there because an overlay cannot lie on an overlay, as /tmp may.
	const script = `mount --make-rprivate / && mount -t tmpfs tmpfs "$DIR" && mkdir "$DIR/upper" "$DIR/work" && printf %s "$HELPER" >"$DIR/upper/mount.nfs" && chmod 755 "$DIR/upper/mount.nfs" &&
		mount -t overlay -o "lowerdir=/usr/sbin,upperdir=$DIR/upper,workdir=$DIR/work" overlay /usr/sbin && exec "$0" "$@"`
	host := command.NewWith([]string{"WINKUBE_NFS_HOST=1", "DIR=" + t.TempDir(), "HELPER=" + nfsHelper})
	out, err := host.Run(t.Context(), nil, "unshare", "--mount", "/bin/sh", "-c", script, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// TestNFSRealMount: the host's own mount(8) takes the arguments and calls its helper; the volume is mounted and unmounted in the kernel.
func TestNFSRealMount(t *testing.T) {
	if !inNFSHost(t) {
		return
	}
	servers := t.TempDir()
	export := filepath.Join(servers, "files", "a b")
	if err := errors.Join(os.MkdirAll(export, 0o755), os.WriteFile(filepath.Join(export, "f"), []byte("x"), 0o644)); err != nil {
		t.Fatal(err)
	}
	r := volumetest.NewWith(t, volumetest.Linux(), mount.System())
	host := command.NewWith([]string{"SERVERS=" + servers})
	r.Program = func(ctx context.Context, name string, args ...string) error {
		_, err := host.Run(ctx, nil, name, args...)
		return err
	}
	p := volumetest.Pod(volumetest.Vol("rw", v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "files", Path: "/a b"}}), volumetest.Vol("ro", v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "files", Path: "/a b", ReadOnly: true}}))
	var paths map[string]string
	for range 2 {
		paths = r.MustPrepare(p)
		r.Restart()
	}
	if err := os.WriteFile(filepath.Join(paths["rw"], "g"), []byte("y"), 0o644); err != nil {
		t.Error(err)
	}
	if data, err := os.ReadFile(filepath.Join(paths["ro"], "g")); err != nil || string(data) != "y" {
		t.Errorf("%q, %v", data, err)
	}
	if err := os.WriteFile(filepath.Join(paths["ro"], "g"), nil, 0o644); !errors.Is(err, syscall.EROFS) {
		t.Errorf("writing to a read-only volume: %v", err)
	}
	if err := r.Clean(t.Context(), p.UID); err != nil {
		t.Error(err)
	}
	if points, err := mount.System().Below(r.Host.Root); err != nil || len(points) > 0 {
		t.Errorf("still mounted: %q, %v", points, err)
	}
	if data, err := os.ReadFile(filepath.Join(export, "g")); err != nil || string(data) != "y" {
		t.Errorf("the server's file: %q, %v", data, err)
	}
	none := volumetest.Pod(volumetest.Vol("v", v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "files", Path: "/none"}}))
	if _, err := r.Prepare(t.Context(), none); err == nil || !strings.Contains(err.Error(), "NFS server files: ") || !strings.Contains(err.Error(), "access denied by server while mounting files:/none") {
		t.Errorf("an export that is not there: %v", err)
	}
	if err := r.Clean(t.Context(), none.UID); err != nil {
		t.Error(err)
	}
}

// TestNFSNoHelper: on a host without mount.nfs the real mount(8) says so in words that we know.
func TestNFSNoHelper(t *testing.T) {
	if _, err := os.Stat("/sbin/mount.nfs"); err == nil {
		t.Skip("this host has mount.nfs")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root for mounts")
	}
	r := volumetest.NewWith(t, volumetest.Linux(), mount.System())
	host := command.New()
	r.Program = func(ctx context.Context, name string, args ...string) error {
		_, err := host.Run(ctx, nil, name, args...)
		return err
	}
	p := volumetest.Pod(volumetest.Vol("v", v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "127.0.0.1", Path: "/x"}}))
	if _, err := r.Prepare(t.Context(), p); err == nil || !strings.Contains(err.Error(), "install nfs-common") {
		t.Error(err)
	}
}
