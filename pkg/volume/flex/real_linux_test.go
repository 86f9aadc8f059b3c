package flex

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/volume/mount"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

// script is a driver as people write them: it mounts the directory in the option "source" and notes its calls beside itself.
const script = `#!/bin/sh
echo "$1 $2" >> "$0.log"
case "$1" in
init) echo '{"status": "Success", "capabilities": {"attach": false}}' ;;
mount)
	source=$(echo "$3" | sed 's/.*"source":"\([^"]*\)".*/\1/')
	if mount --bind "$source" "$2" >&2; then echo '{"status": "Success"}'
	else echo '{"status": "Failure", "message": "cannot mount '"$source"'"}'; exit 1; fi ;;
unmount)
	if umount "$2" >&2; then echo '{"status": "Success"}'
	else echo '{"status": "Failure", "message": "cannot unmount"}'; exit 1; fi ;;
*) echo '{"status": "Not supported"}'; exit 1 ;;
esac
`

// TestScript: a script mounts on a real kernel, the agent is killed, and the script unmounts; what lies behind the mount stays, with a subPath in use.
func TestScript(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	r := &rig{Rig: volumetest.NewWith(t, volumetest.Linux(), mount.System()), t: t, dir: t.TempDir(), run: command.NewPrivate(os.Environ()), driver: &fake{}, next: make(chan struct{})}
	t.Cleanup(func() { // after a failure
		points, _ := mount.System().Below(r.Host.Root)
		for _, p := range slices.Backward(points) {
			_ = mount.System().Unmount(p)
		}
	})
	program := r.install(driverName)
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	r.restart()
	data := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(data, "sub"), 0o755), os.WriteFile(filepath.Join(data, "sub/keep"), []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	p := r.inline("a", v1.FlexVolumeSource{Driver: driverName, Options: map[string]string{"source": data + "/none"}})
	r.refuses(p, "flexVolume driver example.com/dir: mount command failed, status: Failure, reason: cannot mount "+data+"/none")
	p.Spec.Volumes[0].FlexVolume.Options["source"] = data
	dir := r.MustPrepare(p)["v"]
	if b, err := os.ReadFile(filepath.Join(dir, "sub/keep")); err != nil || string(b) != "x" {
		t.Errorf("the volume has %q, %v", b, err)
	}
	if m, err := r.Mount(p, v1.VolumeMount{Name: "v", MountPath: "/x", SubPath: "sub"}); err != nil {
		t.Error(err)
	} else if _, err := os.Stat(filepath.Join(m.HostPath, "keep")); err != nil {
		t.Error(err)
	}
	r.restart()
	r.MustPrepare(p)
	r.restart()
	r.mustClean("a")
	log, err := os.ReadFile(program + ".log")
	got := strings.ReplaceAll(string(log), dir, "DIR")
	if want := "init \nmount DIR\nmount DIR\ninit \ninit \nunmount DIR\n"; err != nil || got != want {
		t.Errorf("calls:\n%swant:\n%s%v", got, want, err)
	}
	if b, err := os.ReadFile(filepath.Join(data, "sub/keep")); err != nil || string(b) != "x" {
		t.Errorf("the file behind the mount: %q, %v", b, err)
	}
	if points, err := mount.System().Below(r.Host.Root); err != nil || len(points) > 0 {
		t.Errorf("mounted %q, %v", points, err)
	}
	r.nothingLeft()
}
