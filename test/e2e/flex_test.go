package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
)

const flexName = "winkube.test/dir"

// flexScript is a flexVolume driver: it mounts the directory of the option "source", and notes calls beside itself. Its call mount waits while
// the file "hang" is there. It has nothing to expand on the control plane (expandvolume).
const flexScript = `#!/bin/sh
echo "$1 $2" >> "$0.log"
case "$1" in
init) echo '{"status": "Success", "capabilities": {"attach": false}}' ;;
mount)
	while [ -e "$0.hang" ]; do sleep 0.2; done
	source=$(echo "$3" | sed 's/.*"source":"\([^"]*\)".*/\1/')
	if mountpoint -q "$2" || mount --bind "$source" "$2" >&2; then echo '{"status": "Success"}'
	else echo '{"status": "Failure", "message": "cannot mount"}'; exit 1; fi ;;
unmount)
	if ! mountpoint -q "$2" || umount "$2" >&2; then echo '{"status": "Success"}'
	else echo '{"status": "Failure", "message": "cannot unmount"}'; exit 1; fi ;;
expandfs)
	echo "from $6 to $5 at $4" >> "$0.log"
	if [ -e "$0.full" ]; then echo '{"status": "Failure", "message": "the pool is full"}'; exit 1
	else echo '{"status": "Success"}'; fi ;;
*) echo '{"status": "Not supported"}'; exit 1 ;;
esac
`

// flexDriver is the script on one node, which finds it while it runs.
type flexDriver struct {
	*space
	node    *lab.Host
	data    string
	program string
}

func newFlexDriver(s *space, node *lab.Host) *flexDriver {
	s.Helper()
	return &flexDriver{s, node, s.TempDir(), installFlex(s, node)}
}

// installFlex puts the script where the kubelet of a node, or the controller manager, looks for it.
func installFlex(s *space, host *lab.Host) (program string) {
	s.Helper()
	vendor, name, _ := strings.Cut(flexName, "/")
	dir := host.Dir("plugins", vendor+"~"+name)
	s.must(os.MkdirAll(dir, 0o755))
	s.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			s.Error(err)
		}
	})
	program = filepath.Join(dir, name)
	s.must(os.WriteFile(program, []byte(flexScript), 0o755))
	return program
}

// uses starts a pod that writes /v/<its name> into the volume and then becomes Ready, and returns where the driver mounts.
func (d *flexDriver) uses(name string) (target string) {
	d.Helper()
	pod := d.pod(name, d.node, "shell", "-c", "write /v/"+name+" x; sleep")
	pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{FlexVolume: &v1.FlexVolumeSource{Driver: flexName, Options: map[string]string{"source": d.data}}}}}
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
	readsAll(pod, "/v/"+name)
	uid := d.create(pod).UID
	return d.node.Dir("kubelet", "pods", string(uid), "volumes", strings.Replace(flexName, "/", "~", 1), "v")
}

// calls returns how often the driver was called for a target.
func (d *flexDriver) calls(name, target string) int {
	d.Helper()
	log, err := os.ReadFile(d.program + ".log")
	if err != nil && !os.IsNotExist(err) {
		d.Fatal(err)
	}
	count := 0
	for line := range strings.Lines(string(log)) { // whole lines: "unmount" ends with "mount"
		if line == name+" "+target+"\n" {
			count++
		}
	}
	return count
}

// ends deletes pods and waits until they are gone.
func (d *flexDriver) ends(names ...string) {
	d.Helper()
	for _, name := range names {
		d.must(client.CoreV1().Pods(d.name).Delete(context.Background(), name, metav1.DeleteOptions{}))
		d.eventually(60*time.Second, "pod "+name+" gone", func(ctx context.Context) error {
			_, err := client.CoreV1().Pods(d.name).Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("still there (%v)", err)
		})
	}
}

// TestFlexVolume: a script mounts once and unmounts once, whatever happens to the kubelet in between, also while the script mounts. A driver that
// is added later is found. Nothing is left, and what lies behind the mount stays.
func TestFlexVolume(t *testing.T) {
	s := newSpace(t)
	d := newFlexDriver(s, cluster.Nodes[1])
	kubelet := d.node.Process("kubelet")
	a := d.uses("a")
	s.ready("a")
	s.allReady(2 * time.Minute)
	before := s.snapshot()
	s.must(kubelet.Kill9(context.Background()))
	s.must(kubelet.Start(context.Background()))
	s.nodeReady(d.node.Name, true, 60*time.Second)

	// The kubelet dies while the driver mounts.
	s.must(os.WriteFile(d.program+".hang", nil, 0o600))
	b := d.uses("b")
	s.eventually(60*time.Second, "the driver mounts", func(context.Context) error {
		if d.calls("mount", b) == 0 {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	s.must(kubelet.Kill9(context.Background()))
	s.must(os.Remove(d.program + ".hang"))
	s.must(kubelet.Start(context.Background()))
	s.ready("b")
	if diff := difference(before, s.snapshot()); strings.HasPrefix(diff, "- ") { // pod b is new
		t.Errorf("containers or restart counts changed:\n%s", diff)
	}

	d.ends("a", "b")
	if mounts, unmounts := d.calls("mount", a), d.calls("unmount", a); mounts != 1 || unmounts != 1 {
		t.Errorf("pod a's volume was mounted %d times and unmounted %d times, want 1 and 1", mounts, unmounts)
	}
	if unmounts := d.calls("unmount", b); unmounts != 1 {
		t.Errorf("pod b's volume was unmounted %d times, want 1", unmounts)
	}
	mounts, err := d.node.Command(context.Background(), "cat", "/proc/self/mounts").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{a, b} {
		if strings.Contains(string(mounts), target) {
			t.Errorf("%s is still mounted", target)
		}
		if _, err := os.Stat(target); err == nil {
			t.Errorf("%s is still there", target)
		}
		name := map[string]string{a: "a", b: "b"}[target]
		if _, err := os.Stat(filepath.Join(d.data, name)); err != nil {
			t.Errorf("the file of pod %s: %v", name, err)
		}
	}
}
