package san_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/san"
	"github.com/winkube/winkube/pkg/volume/volumetest"
	"github.com/winkube/winkube/pkg/wake"
)

// rig is a Manager with the kinds iscsi and fc over a world.
type rig struct {
	*volumetest.Rig
	t     *testing.T
	world *world
	iscsi *san.Kind
	fc    *san.Kind
	api   *objects

	cut     context.CancelFunc
	running sync.WaitGroup
	changed wake.Signal
}

// objects is an API server whose attach controller immediately does what a node asks for.
type objects struct {
	*volumetest.API
	rig     *rig
	nothing bool // the controller is away
}

func (o *objects) NodeState() (*v1.Node, <-chan struct{}) {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", ResourceVersion: "1"}}
	if o.nothing {
		return node, nil
	}
	node.Status.VolumesInUse = append(o.rig.iscsi.InUse(), o.rig.fc.InUse()...)
	for _, n := range node.Status.VolumesInUse {
		node.Status.VolumesAttached = append(node.Status.VolumesAttached, v1.AttachedVolume{Name: n})
	}
	o.rig.iscsi.Reported(node)
	o.rig.fc.Reported(node)
	return node, nil
}

func newRig(t *testing.T) *rig {
	r := &rig{Rig: volumetest.New(t, volumetest.Linux()), t: t}
	r.world = newWorld(t, r.Kernel)
	r.api = &objects{API: r.API, rig: r}
	r.start()
	t.Cleanup(r.kill)
	return r
}

// start starts an agent, which knows what lies on disk.
func (r *rig) start() {
	r.changed = wake.New()
	parts := san.Parts{Run: r.world, Objects: r.api, System: r.world.system, Changed: r.changed}
	r.iscsi, r.fc = san.NewISCSI(r.Host, parts), san.NewFC(r.Host, parts)
	r.Restart(r.iscsi, r.fc)
	ctx, cut := context.WithCancel(context.Background())
	r.cut = cut
	for _, k := range []*san.Kind{r.iscsi, r.fc} {
		r.running.Go(func() { _ = k.Run(ctx) })
	}
}

// kill ends an agent. What it has begun for a pod goes on, as a program that it has started does.
func (r *rig) kill() {
	r.cut()
	r.running.Wait()
}

func (r *rig) again() {
	r.kill()
	r.start()
}

// released waits until no disk is on the node.
func (r *rig) released() {
	r.t.Helper()
	late := time.NewTimer(20 * time.Second)
	defer late.Stop()
	for len(r.iscsi.InUse())+len(r.fc.InUse()) > 0 {
		select {
		case <-r.changed:
		case <-late.C:
			r.t.Fatalf("still in use: %q %q\n%s", r.iscsi.InUse(), r.fc.InUse(), r.lines())
		}
	}
}

func (r *rig) clean(uid types.UID) {
	r.t.Helper()
	if err := r.Clean(r.t.Context(), uid); err != nil {
		r.t.Fatal(err)
	}
}

// lines is what was run since the last call, without paths of this machine.
func (r *rig) lines() string {
	text := r.world.Transcript()
	for _, of := range [][2]string{{r.world.dir, ""}, {r.Host.Root, "ROOT"}} {
		text = strings.ReplaceAll(text, of[0], of[1])
	}
	return text
}

func (r *rig) want(name, got, want string) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
	}
}

// pod is one with a volume of a disk.
func pod(uid string, source v1.VolumeSource) *v1.Pod {
	p := volumetest.Pod(volumetest.Vol("v", source))
	p.UID, p.Name = types.UID(uid), uid
	return p
}

func iscsiSource(change ...func(*v1.ISCSIVolumeSource)) v1.VolumeSource {
	s := &v1.ISCSIVolumeSource{TargetPortal: "10.0.0.1", IQN: targetName, Lun: 0, ISCSIInterface: "default", FSType: "ext4"}
	for _, c := range change {
		c(s)
	}
	return v1.VolumeSource{ISCSI: s}
}

// left lists what is left of disks below the agent's directory, and of open-iscsi's records.
func (r *rig) left() string {
	var out []string
	for _, dir := range []string{filepath.Join(r.Host.Root, "plugins"), filepath.Join(r.world.dir, "iscsi")} {
		err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				out = append(out, strings.TrimPrefix(strings.TrimPrefix(path, r.Host.Root), r.world.dir))
			}
			return nil
		})
		if err != nil {
			r.t.Fatal(err)
		}
	}
	for id, s := range r.world.sessions {
		out = append(out, fmt.Sprintf("session %s to %s", id, s.portal))
	}
	for name := range r.world.devices {
		out = append(out, "device "+name)
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

var _ volume.BlockKind = (*san.Kind)(nil)
