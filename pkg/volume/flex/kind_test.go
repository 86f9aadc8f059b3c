package flex

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/volume/access"
	"github.com/winkube/winkube/pkg/volume/volumetest"
)

// TestMountedOnce: a pod's volume is mounted once and unmounted once, even if it is prepared again and the agent is killed meanwhile.
func TestMountedOnce(t *testing.T) {
	r := newRig(t, volumetest.Linux())
	p := r.inline("a", v1.FlexVolumeSource{Driver: driverName, ReadOnly: true})
	want := r.path("pods/a/volumes/example.com~dir/v")
	for range 2 {
		if got := r.MustPrepare(p)["v"]; got != want {
			t.Errorf("at %s, want %s", got, want)
		}
	}
	if m, err := r.Mount(p, v1.VolumeMount{Name: "v", MountPath: "/x"}); err != nil || m.HostPath != want || !m.ReadOnly {
		t.Errorf("mount: %+v, %v", m, err)
	}
	r.want("init, mount v")
	r.restart()
	r.API.Down = errors.New("connection refused")
	r.MustPrepare(p)
	r.want("init, mount v, init")
	r.restart()
	for range 2 {
		r.mustClean("a")
	}
	r.want("init, mount v, init, init, unmount v")
	r.nothingLeft()
}

// TestRebooted: a reboot takes the mount away, and the driver mounts again.
func TestRebooted(t *testing.T) {
	r := newRig(t, volumetest.Linux())
	p := r.inline("a", v1.FlexVolumeSource{Driver: driverName})
	r.MustPrepare(p)
	r.Kernel.Points = nil
	r.restart()
	r.MustPrepare(p)
	r.want("init, mount v, init, mount v")
}

// TestMountsNothing: a driver that fills the directory itself is trusted until the agent ends, and its files are removed with the pod.
func TestMountsNothing(t *testing.T) {
	r := newRig(t, volumetest.Linux())
	r.driver.mounts = false
	p := r.inline("a", v1.FlexVolumeSource{Driver: driverName})
	dir := r.MustPrepare(p)["v"]
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.MustPrepare(p)
	r.want("init, mount v")
	r.restart()
	r.MustPrepare(p)
	r.want("init, mount v, init, mount v")
	r.mustClean("a")
	r.want("init, mount v, init, mount v, unmount v")
	r.nothingLeft()
}

// TestWindows: drivers on Windows, such as those for SMB, replace the directory with a link. The link is removed, its target stays.
func TestWindows(t *testing.T) {
	const name = "example.com/smb.cmd"
	r := newRig(t, volumetest.Windows())
	r.install(name)
	share := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	err := os.Symlink(share, link)
	if fi, statErr := os.Lstat(link); err != nil || statErr != nil || fi.Mode()&fs.ModeSymlink == 0 { // Wine reports success and makes nothing
		t.Skipf("cannot make links here: %v", errors.Join(err, statErr))
	}
	if err := os.WriteFile(filepath.Join(share, "keep"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := r.inline("a", v1.FlexVolumeSource{Driver: name, Options: map[string]string{"source": `\\nas\x & y`}})
	r.run = linking{r.driver, share}
	r.restart()
	dir := r.MustPrepare(p)["v"]
	r.MustPrepare(p)
	r.restart()
	r.MustPrepare(p)
	r.want("init, mount v, init")
	if m, err := r.Mount(p, v1.VolumeMount{Name: "v", MountPath: `C:\x`}); err != nil || m.HostPath != share {
		t.Errorf("mount: %+v, %v", m, err)
	}
	if err := errors.Join(os.Remove(dir), os.Symlink(`\\nas\x`, dir)); err != nil {
		t.Fatal(err)
	}
	if m, err := r.Mount(p, v1.VolumeMount{Name: "v", MountPath: `C:\x`}); err == nil || !strings.Contains(err.Error(), `the share \\nas\x\, which containers can use from Windows Server version 1709`) {
		t.Errorf("a share on Server 2016: %+v, %v", m, err)
	}
	if err := errors.Join(os.Remove(dir), os.Symlink(share, dir)); err != nil {
		t.Fatal(err)
	}
	if got := r.driver.options["mount"]; !strings.Contains(got, `"source":"\u005c\u005cnas\u005cx\u0020\u0026\u0020y"`) {
		t.Errorf("options %s", got)
	}
	// One that leaves its link behind.
	r.driver.set("unmount", success)
	r.mustClean("a")
	if _, err := os.Lstat(dir); err == nil {
		t.Error("the link is still there")
	}
	if _, err := os.Stat(filepath.Join(share, "keep")); err != nil {
		t.Errorf("the share's file: %v", err)
	}
	r.nothingLeft()
	for driver, want := range map[string]string{
		`c:\windows/x`: "want VENDOR/DRIVER", "example.com/con": "example.com/con", "example.com/smb.ps1": "Windows cannot start",
	} {
		r.refuses(r.inline("b", v1.FlexVolumeSource{Driver: driver}), want)
	}
}

// linking is a Windows driver whose mounts are links.
type linking struct {
	*fake
	share string
}

func (l linking) Run(ctx context.Context, stdin []byte, name string, args ...string) ([]byte, error) {
	out, err := l.fake.Run(ctx, stdin, name, args...)
	if err == nil && args[0] == "mount" {
		err = errors.Join(os.Remove(args[1]), os.Symlink(l.share, args[1]))
	}
	return out, err
}

// TestTwoPodsOneVolume: each pod has its own mount, which the other pod's end leaves alone.
func TestTwoPodsOneVolume(t *testing.T) {
	r := newRig(t, volumetest.Linux())
	a, b := r.claimed("a", false), r.claimed("b", true)
	r.MustPrepare(a)
	if got, want := r.MustPrepare(b)["v"], r.path("pods/b/volumes/example.com~dir/pv"); got != want {
		t.Errorf("at %s, want %s", got, want)
	}
	var options map[string]string
	if err := json.Unmarshal([]byte(r.driver.options["mount"]), &options); err != nil || options[optionReadWrite] != "ro" || options[optionFSType] != "ext4" {
		t.Errorf("options %v, %v", options, err)
	}
	r.mustClean("a")
	if len(r.Kernel.Points) != 1 {
		t.Errorf("mounted: %q", r.Kernel.Points)
	}
	r.mustClean("b")
	r.want("init, mount pv, mount pv, unmount pv, unmount pv")
	r.nothingLeft()
}

// TestSecret: the driver gets the Secret of its type; no error shows its values, in whatever form the driver repeats them.
func TestSecret(t *testing.T) {
	r := newRig(t, volumetest.Linux())
	p := r.inline("a", v1.FlexVolumeSource{Driver: driverName, SecretRef: &v1.LocalObjectReference{Name: "login"}, Options: map[string]string{"share": "//nas/x"}})
	r.refuses(p, `couldn't get secret shop/login: secrets "login" not found`)
	r.secrets["shop/login"] = &v1.Secret{Type: "Opaque", Data: map[string][]byte{"password": []byte("s3cr3t\n")}}
	r.refuses(p, `Secret shop/login has type "Opaque", and the driver gets only Secrets of type "example.com/dir"`)
	r.secrets["shop/login"].Type = driverName
	r.want("init")

	const encoded = "czNjcjN0Cg=="
	exit := &command.ExitError{Code: 1, State: "exit status 1", Output: "bad password s3cr3t of " + encoded}
	for _, test := range []struct {
		says string
		fail error
		want string
	}{
		{`{"status": "Failure", "message": "login s3cr3t (` + encoded + `) refused"}`, nil, "mount command failed, status: Failure, reason: login *** (***) refused"},
		{"rubbish s3cr3t", nil, `mount command failed: the driver printed "rubbish ***"; want JSON such as {"status": "Success"}`},
		{"", exit, "mount command failed: exit status 1: bad password *** of ***"},
		{success, exit, "mount command failed: the driver printed Success, and ended with exit status 1: bad password *** of ***"},
		{"", &command.ExitError{State: "exit status 1", Output: "... 3cr3t and more text that stays"}, "mount command failed: exit status 1: re text that stays"},
		{lacking, nil, `mount command failed: the driver answered "Not supported"; want a driver that mounts`},
	} {
		r.restart()
		r.driver.says["mount"], r.driver.fails["mount"] = test.says, test.fail
		r.refuses(p, test.want)
		if _, err := os.Stat(r.path("pods/a/volumes/example.com~dir/v")); err == nil {
			t.Errorf("%s: a volume that was not mounted is recorded", test.want)
		}
	}
	r.restart()
	delete(r.driver.says, "mount")
	delete(r.driver.fails, "mount")
	r.MustPrepare(p)
	var options map[string]string
	if err := json.Unmarshal([]byte(r.driver.options["mount"]), &options); err != nil || options["kubernetes.io/secret/password"] != encoded || options["share"] != "//nas/x" {
		t.Errorf("options %v, %v", options, err)
	}
	r.mustClean("a")
	r.nothingLeft()
}

// TestSecretOfVolume: a PersistentVolume names a Secret of any namespace.
func TestSecretOfVolume(t *testing.T) {
	r := newRig(t, volumetest.Linux())
	p := r.claimed("a", false)
	r.API.Volumes["pv"].Spec.FlexVolume.SecretRef = &v1.SecretReference{Name: "login", Namespace: "storage"}
	r.secrets["storage/login"] = &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "login"}, Type: driverName, Data: map[string][]byte{"user": []byte("x")}}
	r.MustPrepare(p)
	if got := r.driver.options["mount"]; !strings.Contains(got, `"kubernetes.io/secret/user":"eA=="`) {
		t.Errorf("options %s", got)
	}
}

// TestFSGroup: the kubelet gives the volume to the group, unless the driver says that it does so, and the driver gets the group either way.
func TestFSGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("changing a file's group needs root")
	}
	for answer, want := range map[string]int64{plainInit: 1234, `{"status":"Success","capabilities":{"attach":false,"fsGroup":false}}`: int64(os.Getegid())} {
		r := newRig(t, volumetest.Linux())
		r.driver.set("init", answer)
		p := r.inline("a", v1.FlexVolumeSource{Driver: driverName})
		p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: new(int64(1234))}
		dir := r.MustPrepare(p)["v"]
		fi, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := access.GroupOf(fi); got != want {
			t.Errorf("%s: group %d, want %d", answer, got, want)
		}
		if !strings.Contains(r.driver.options["mount"], `"kubernetes.io/mounterArgs.FsGroup":"1234"`) {
			t.Errorf("options %s", r.driver.options["mount"])
		}
	}
}

// TestNoGroups: a file system that cannot be given to the group is used as it is.
func TestNoGroups(t *testing.T) {
	r := newRig(t, volumetest.Linux())
	r.run = groupless{r.driver}
	r.restart()
	p := r.inline("a", v1.FlexVolumeSource{Driver: driverName})
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: new(int64(1234))}
	r.MustPrepare(p)
	r.want("init, mount v")
	r.mustClean("a")
	r.nothingLeft()
}

// groupless is a driver whose volumes have no groups: none can be opened.
type groupless struct{ *fake }

func (g groupless) Run(ctx context.Context, stdin []byte, name string, args ...string) ([]byte, error) {
	out, err := g.fake.Run(ctx, stdin, name, args...)
	if err == nil && args[0] == "mount" {
		err = os.Remove(args[1])
	}
	return out, err
}

// TestDriverChanges: the agent notices without a restart that a driver is missing, cannot run, is added or is replaced.
func TestDriverChanges(t *testing.T) {
	r := newRig(t, volumetest.Linux())
	p := r.inline("a", v1.FlexVolumeSource{Driver: driverName})
	program := r.install(driverName)
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	missing := "flexVolume driver example.com/dir is not installed on this node: want a program that may be run at " + program
	r.refuses(p, missing)
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r.refuses(p, missing)
	r.mustClean("a") // it had nothing
	r.install(driverName)
	if err := os.Chmod(program, 0o755); err != nil {
		t.Fatal(err)
	}
	r.driver.set("init", "Traceback ...")
	r.refuses(p, `flexVolume driver example.com/dir: init: init command failed: the driver printed "Traceback ..."`)
	r.driver.set("init", "")
	r.MustPrepare(p)
	r.want("init, init, mount v")

	// Its replacement requires a feature that this agent lacks.
	if err := os.WriteFile(program, []byte("#!/bin/sh\n# version 2\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.MustPrepare(p)
	r.MustPrepare(r.inline("b", v1.FlexVolumeSource{Driver: driverName}))
	r.want("init, init, mount v, init, mount v")

	// It is removed before the pods end.
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	if err := r.Clean(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), missing) || !strings.Contains(err.Error(), "volume v stays until the driver is back") {
		t.Errorf("Clean: %v", err)
	}
	if len(r.Kernel.Points) != 2 {
		t.Errorf("unmounted without the driver: %q", r.Kernel.Points)
	}
	r.install(driverName)
	r.mustClean("a")
	r.mustClean("b")
	r.nothingLeft()
}

// TestUnmountFails: what the driver cannot unmount stays mounted, and the pod's directory stays: only the driver may unmount it.
func TestUnmountFails(t *testing.T) {
	r := newRig(t, volumetest.Linux())
	dir := r.MustPrepare(r.inline("a", v1.FlexVolumeSource{Driver: driverName}))["v"]
	r.driver.set("unmount", failure)
	if err := r.Clean(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "flexVolume driver example.com/dir: volume v: unmount command failed, status: Failure, reason: no") {
		t.Errorf("Clean: %v", err)
	}
	if on, _ := r.Kernel.IsMount(dir); !on {
		t.Error("unmounted behind the driver's back")
	}
	r.driver.set("unmount", "")
	r.mustClean("a")
	r.nothingLeft()
}

// TestLeavesMounts: a driver that does not unmount leaves it to the kubelet.
func TestLeavesMounts(t *testing.T) {
	for _, says := range []string{lacking, success} {
		r := newRig(t, volumetest.Linux())
		dir := r.MustPrepare(r.inline("a", v1.FlexVolumeSource{Driver: driverName}))["v"]
		r.Kernel.Points = append(r.Kernel.Points, dir)
		r.driver.set("unmount", says)
		r.mustClean("a")
		r.nothingLeft()
	}
}

// TestFromUpstream: what upstream's kubelet has mounted is unmounted by its driver, with the API away; other directories are none of ours.
func TestFromUpstream(t *testing.T) {
	r := newRig(t, volumetest.Linux())
	r.install("plain")
	for _, dir := range []string{"pods/a/volumes/example.com~dir/pv", "pods/a/volumes/plain/v", "pods/a/volumes/kubernetes.io~empty-dir/v", "pods/a/volumes/.hidden/v"} {
		if err := os.MkdirAll(r.path(dir), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	r.Kernel.Points = append(r.Kernel.Points, r.path("pods/a/volumes/example.com~dir/pv"))
	r.API.Down = errors.New("connection refused")
	uses, err := r.kind.tree.uses(volumetest.Linux(), "")
	if err != nil || len(uses) != 2 || uses[0] != (use{"a", driverName, "pv"}) || uses[1] != (use{"a", "plain", "v"}) {
		t.Errorf("uses %v, %v", uses, err)
	}
	r.mustClean("a")
	if got := r.driver.seen(); strings.Count(got, "unmount") != 2 || strings.Count(got, "init") != 2 {
		t.Errorf("calls: %s", got)
	}
	r.nothingLeft()
}

// TestFigures: a driver says whether its volumes are measured, also after a restart of the agent.
func TestFigures(t *testing.T) {
	r := newRig(t, volumetest.Linux())
	p := r.claimed("a", false)
	for _, answer := range []string{`{"status":"Success","capabilities":{"attach":false,"supportsMetrics":true}}`, plainInit} {
		r.driver.set("init", answer)
		for range 2 {
			r.restart()
			dir := r.MustPrepare(p)["v"]
			r.kind.crew.Wait()
			places, err := r.Places(p)
			if err != nil || answer == plainInit && len(places) != 0 || answer != plainInit && (len(places) != 1 || places[0].Path != dir || !places[0].Own || places[0].Claim != "data") {
				t.Errorf("%s: %+v, %v", answer, places, err)
			}
		}
	}
}

// TestRefused: an error in the API object gives one clear line, and no driver is called.
func TestRefused(t *testing.T) {
	r := newRig(t, volumetest.Linux())
	for want, source := range map[string]v1.FlexVolumeSource{
		`flexVolume.driver "../../bin/sh": want VENDOR/DRIVER`:                                  {Driver: "../../bin/sh"},
		`flexVolume.driver "kubernetes.io/csi": want another vendor than kubernetes.io`:         {Driver: "kubernetes.io/csi"},
		`flexVolume.options has the key "kubernetes.io/fsType": want none of kubernetes.io and`: {Driver: driverName, Options: map[string]string{"kubernetes.io/fsType": "x"}},
	} {
		r.refuses(r.inline("a", source), want)
	}
	p := r.claimed("b", false)
	r.API.Volumes["pv"].Spec.MountOptions = []string{"soft"}
	r.refuses(p, `PersistentVolume pv: mountOptions ["soft"]: Mount options are not supported for this volume type`)
	r.API.Volumes["pv"].Spec.MountOptions, r.API.Volumes["pv"].Spec.VolumeMode = nil, new(v1.PersistentVolumeBlock)
	p.Spec.Containers[0].VolumeDevices = []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/x"}}
	r.refuses(p, "has volumeMode Block, which this node agent does not support for that kind")
	r.want("")
}

// TestHungDriver: a driver that hangs blocks only its volume; the pod gets an error, and nothing is done for the volume before the call has ended.
func TestHungDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, volumetest.Linux())
		resume := make(chan struct{})
		r.driver.hung["mount"] = resume
		a := r.inline("a", v1.FlexVolumeSource{Driver: driverName})
		begin := time.Now()
		_, err := r.Prepare(t.Context(), a)
		if err == nil || !strings.Contains(err.Error(), "still busy after 2m0s; waiting for its end") || time.Since(begin) != callWait {
			t.Errorf("after %s: %v", time.Since(begin), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Clean(ctx, "a"); err == nil {
			t.Error("cleaned up during a call")
		}
		r.want("init, mount v")
		r.driver.mu.Lock()
		delete(r.driver.hung, "mount")
		r.driver.mu.Unlock()
		close(resume)
		r.mustClean("a")
		r.want("init, mount v, unmount v")
		r.nothingLeft()

		// One that never ends is killed.
		r.driver.mu.Lock()
		r.driver.hung["mount"] = make(chan struct{})
		r.driver.mu.Unlock()
		b := r.inline("b", v1.FlexVolumeSource{Driver: driverName})
		for begin = time.Now(); time.Since(begin) < callTime-callWait; {
			if _, err = r.Prepare(t.Context(), b); err == nil {
				t.Fatal("mounted")
			}
		}
		r.driver.mu.Lock()
		delete(r.driver.hung, "mount")
		r.driver.mu.Unlock()
		time.Sleep(callWait / 2) // the next waits less than callWait
		r.MustPrepare(b)
		if got := time.Since(begin); got != callTime {
			t.Errorf("the driver was killed after %s, want %s", got, callTime)
		}
		r.mustClean("b")
		r.nothingLeft()
	})
}
