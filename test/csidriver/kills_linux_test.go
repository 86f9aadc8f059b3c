package csidriver_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/csi/drivers"
	"github.com/winkube/winkube/pkg/plugins"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/volume"
	csivolume "github.com/winkube/winkube/pkg/volume/csi"
	"github.com/winkube/winkube/pkg/volume/mount"
	"github.com/winkube/winkube/pkg/volume/volumetest"
	"github.com/winkube/winkube/pkg/wake"
	"github.com/winkube/winkube/test/csidriver"
)

// Variables of the test's child processes: which part to run, below which directory.
const (
	partVariable = "WINKUBE_TEST_PART"
	rootVariable = "WINKUBE_TEST_ROOT"
)

func TestMain(m *testing.M) {
	part := map[string]func(context.Context, string) error{"driver": driverPart, "kubelet": kubeletPart}[os.Getenv(partVariable)]
	if part == nil {
		os.Exit(m.Run())
	}
	if err := part(context.Background(), os.Getenv(rootVariable)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func driverPart(ctx context.Context, root string) error {
	d, err := csidriver.New(csidriver.Config{Name: "dir.winkube.test", NodeID: "n1", Endpoint: filepath.Join(root, "csi.sock"), Registry: filepath.Join(root, "reg"), Data: filepath.Join(root, "data")})
	if err != nil {
		return err
	}
	return d.Run(ctx)
}

// Claims of killedPods, each with a volume of the same name.
var killedClaims = []string{"one", "two", "shared"}

// killObjects is an API server with these claims, and with inline volumes of the driver.
type killObjects struct{ objects }

func (o killObjects) CSIDriver(_ context.Context, name string) (*storagev1.CSIDriver, error) {
	return o.KnownCSIDriver(name), nil
}

func (killObjects) KnownCSIDriver(string) *storagev1.CSIDriver {
	return &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{AttachRequired: new(false), PodInfoOnMount: new(true),
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral}}}
}

func newKillObjects(data csidriver.Outside) (killObjects, error) {
	api := &volumetest.API{Claims: map[string]*v1.PersistentVolumeClaim{}, Volumes: map[string]*v1.PersistentVolume{}}
	for _, name := range killedClaims {
		handle, err := data.Make(name, 1<<20)
		if err != nil {
			return killObjects{}, err
		}
		uid := types.UID("claim-" + name)
		api.Claims["shop/"+name] = &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "shop", UID: uid},
			Spec: v1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name}, Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound}}
		api.Volumes["pv-"+name] = &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}, Spec: v1.PersistentVolumeSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}, ClaimRef: &v1.ObjectReference{UID: uid},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "dir.winkube.test", VolumeHandle: handle}},
		}}
	}
	return killObjects{objects{api}}, nil
}

// kubeletPart is what a kubelet has for volumes of CSI drivers. It runs the pods that wanted/UID names, with the volumes that stand in that file, and
// has ready/UID for each whose volumes are ready.
func kubeletPart(ctx context.Context, root string) error {
	api, err := newKillObjects(csidriver.Outside{Data: filepath.Join(root, "data")})
	if err != nil {
		return err
	}
	host, err := volume.Open(filepath.Join(root, "kubelet"), pod.Platform{OS: "linux", SharedNetwork: true})
	if err != nil {
		return err
	}
	host.Mounts = mount.System()
	registry := drivers.New("n1", drivers.Parts{Counted: func(string, string, time.Duration, error, bool) {}, Clock: clock.RealClock{}})
	watcher := plugins.New(plugins.Config{Dir: filepath.Join(root, "reg"), Handlers: map[string]plugins.Handler{registration.CSIPlugin: registry}, Clock: clock.RealClock{}})
	go func() { _ = watcher.Run(ctx) }()
	kind := csivolume.New(host, csivolume.Parts{NodeName: "n1", Drivers: registry, Objects: api, Events: noEvents{}, Refresh: registry.Refresh, Changed: wake.New(), Clock: clock.RealClock{}})
	go func() { _ = kind.Run(ctx) }()
	manager, err := volume.New(host, volume.Parts{Claims: api, Kinds: []volume.Kind{kind}, Clock: clock.RealClock{}, Prepared: func(string, time.Duration, error) {}})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	busy := map[types.UID]bool{}
	for {
		uids, err := manager.Leftovers()
		if err != nil {
			return err
		}
		wanted, err := os.ReadDir(filepath.Join(root, "wanted"))
		if err != nil {
			return err
		}
		for _, entry := range wanted {
			uids = append(uids, types.UID(entry.Name()))
		}
		for _, uid := range uids {
			mu.Lock()
			if !busy[uid] {
				busy[uid] = true
				go func() {
					if err := look(ctx, manager, root, uid); err != nil {
						fmt.Fprintln(os.Stderr, err)
						time.Sleep(50 * time.Millisecond) // before the next try
					}
					mu.Lock()
					defer mu.Unlock()
					delete(busy, uid)
				}()
			}
			mu.Unlock()
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// look does what a pod needs now.
func look(ctx context.Context, manager *volume.Manager, root string, uid types.UID) error {
	volumes, err := os.ReadFile(filepath.Join(root, "wanted", string(uid)))
	ready := filepath.Join(root, "ready", string(uid))
	if errors.Is(err, fs.ErrNotExist) {
		return errors.Join(manager.Clean(ctx, uid), os.RemoveAll(ready))
	}
	if err != nil {
		return err
	}
	p := volumetest.Pod()
	p.UID = uid
	for i, name := range strings.Fields(string(volumes)) {
		source := v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "dir.winkube.test"}}
		if slices.Contains(killedClaims, name) {
			source = v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}
		}
		p.Spec.Volumes = append(p.Spec.Volumes, volumetest.Vol(fmt.Sprintf("v%d", i), source))
	}
	if _, err := manager.Prepare(ctx, p); err != nil {
		return err
	}
	return os.WriteFile(ready, nil, 0o600)
}

// killRig has the two processes and the pods that come and go.
type killRig struct {
	csidriver.Outside
	t     *testing.T
	root  string
	parts map[string]*exec.Cmd
	log   *os.File

	mu    sync.Mutex
	wrote map[string][]string // pods by claim
	done  int
}

// number reads a number from the environment.
func number(t *testing.T, name string, otherwise int) int {
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		t.Fatalf("%s=%q: want a number from 0 on", name, text)
	}
	return n
}

// TestKills kills the kubelet's part for CSI volumes, the driver or both (WINKUBE_CSI_KILLS times, at moments chosen by WINKUBE_SEED), before and after the work of calls, while pods with their volumes
// come and go. TestCSIKills of test/e2e does the same with a whole kubelet.
func TestKills(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	kills, seed := number(t, "WINKUBE_CSI_KILLS", 15), uint64(number(t, "WINKUBE_SEED", int(time.Now().UnixNano()%100000)))
	t.Logf("%d kills, WINKUBE_SEED=%d", kills, seed)
	root := shortRoot(t)
	r := &killRig{t: t, root: root, Outside: csidriver.Outside{Data: filepath.Join(root, "data")}, parts: map[string]*exec.Cmd{}, wrote: map[string][]string{}}
	for _, dir := range []string{"data", "wanted", "ready"} {
		r.must(os.Mkdir(filepath.Join(root, dir), 0o755))
	}
	var err error
	r.log, err = os.Create(filepath.Join(root, "log"))
	r.must(err)
	t.Cleanup(r.end)
	r.start("driver")
	r.start("kubelet")
	churn, stop := context.WithCancel(t.Context())
	defer stop()
	var group sync.WaitGroup
	for i, volumes := range []string{"one", "two inline", "inline", "inline inline", "shared", "shared", "shared one"} {
		group.Go(func() { r.churn(churn, i, volumes, rand.New(rand.NewPCG(seed, uint64(i+2)))) })
	}
	random, how := rand.New(rand.NewPCG(seed, 1)), map[string]int{}
	for n := 0; n < kills && !t.Failed(); n++ {
		how[r.strike(random)]++
	}
	stop()
	group.Wait()
	t.Logf("%d pods came and went; kills: %v", r.done, how)
	if !r.await(time.Minute, func() bool { registered, err := r.Registered(); return err == nil && registered }) {
		t.Error("the kubelet has not registered the driver since the last kill")
	}
	record := filepath.Join(root, "kubelet/plugins/kubernetes.io/csi/dir.winkube.test/*")
	unstaged := func() bool { left, err := filepath.Glob(record); return err == nil && len(left) == 0 }
	if !r.await(time.Minute, unstaged) { // pods do not wait for that
		t.Error("volumes are still staged a minute after their last pods")
	}
	for _, points := range r.mounted() {
		t.Errorf("left mounted: %s", points)
	}
	lines, err := r.Calls()
	r.must(err)
	wrong, left := csidriver.Order(lines)
	if len(wrong) > 0 || len(left) > 0 {
		t.Errorf("wrong: %s\nleft: %s\nin the calls\n%s", strings.Join(wrong, "\n"), strings.Join(left, "\n"), strings.Join(lines, "\n"))
	}
	for claim, pods := range r.wrote {
		handle, err := r.Make(claim, 1<<20)
		r.must(err)
		for _, name := range pods {
			if text, err := os.ReadFile(filepath.Join(r.Content(handle), name)); err != nil || string(text) != name {
				t.Errorf("claim %s has %q of pod %s, %v", claim, text, name, err)
			}
		}
	}
	volumes, err := r.Volumes()
	garbage, more := r.Garbage()
	staged, last := filepath.Glob(record)
	if err = errors.Join(err, more, last); err != nil || len(volumes) != len(killedClaims) || len(garbage)+len(staged) > 0 {
		t.Errorf("left: volumes %q, garbage %q, %q, %v", volumes, garbage, staged, err)
	}
}

func (r *killRig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// start starts a part as a process.
func (r *killRig) start(part string) {
	r.t.Helper()
	run := exec.Command(os.Args[0])
	run.Env = append(os.Environ(), partVariable+"="+part, rootVariable+"="+r.root)
	run.Stdout, run.Stderr = r.log, r.log
	r.must(run.Start())
	r.parts[part] = run
}

func (r *killRig) kill(part string) {
	run := r.parts[part]
	_ = run.Process.Kill()
	_ = run.Wait()
}

// end ends the processes and unmounts what a failed test has left.
func (r *killRig) end() {
	for part := range r.parts {
		r.kill(part)
	}
	for _, point := range slices.Backward(r.mounted()) {
		r.must(mount.System().Unmount(point))
	}
	if r.t.Failed() {
		text, _ := os.ReadFile(r.log.Name())
		r.t.Logf("the processes' log ends with\n%s", text[max(0, len(text)-20000):])
	}
	r.log.Close()
}

// mounted lists what is mounted below the root, and fails the test if it is twice in one place.
func (r *killRig) mounted() []string {
	r.t.Helper()
	points, err := mount.System().Below(r.root)
	if err != nil {
		r.t.Error(err)
	}
	slices.Sort(points)
	for i := range points[:max(0, len(points)-1)] {
		if points[i] == points[i+1] {
			r.t.Errorf("mounted twice: %s", points[i])
		}
	}
	return points
}

// strike lets both parts run for a while, kills one of them or both, and starts them again. It returns what it has killed when.
func (r *killRig) strike(random *rand.Rand) string {
	r.t.Helper()
	pause := func(longest time.Duration) { time.Sleep(time.Duration(random.Int64N(int64(longest)))) } // any moment is right
	pause(200 * time.Millisecond)
	victims := [][]string{{"kubelet"}, {"driver"}, {"kubelet", "driver"}}[random.IntN(3)]
	method := csidriver.Methods[random.IntN(len(csidriver.Methods))]
	stop, moment := r.Hang, "before "
	if random.IntN(2) == 0 {
		stop, moment = r.Linger, "after "
	}
	if moment += method; random.IntN(4) == 0 {
		moment = "at random"
	} else {
		r.must(stop(method))
		if !r.await(3*time.Second, func() bool { under, err := r.UnderWay(method); return err == nil && under }) {
			moment = "at random"
		}
	}
	for _, part := range victims {
		if r.kill(part); part == "kubelet" {
			r.must(r.KubeletKilled())
		}
	}
	r.mounted()
	r.must(r.Resume(method))
	for _, i := range random.Perm(len(victims)) {
		r.start(victims[i])
	}
	return strings.Join(victims, " and ") + " " + moment
}

// await waits until ok, or reports that it is not in time.
func (r *killRig) await(patience time.Duration, ok func() bool) bool {
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// churn lets pods with the same volumes come and go. Each writes its name into all of its volumes, unless it ends before they are ready.
func (r *killRig) churn(ctx context.Context, slot int, volumes string, random *rand.Rand) {
	for n := 0; ctx.Err() == nil && !r.t.Failed(); n++ {
		uid := fmt.Sprintf("%d-%d", slot, n)
		wanted, dir := filepath.Join(r.root, "wanted", uid), filepath.Join(r.root, "kubelet/pods", uid)
		next := filepath.Join(r.root, uid)
		if err := errors.Join(os.WriteFile(next, []byte(volumes), 0o600), os.Rename(next, wanted)); err != nil {
			r.t.Error(err)
			return
		}
		if random.IntN(4) > 0 {
			if !r.await(time.Minute, func() bool { _, err := os.Stat(filepath.Join(r.root, "ready", uid)); return err == nil }) {
				r.t.Errorf("pod %s does not get its volumes", uid)
				return
			}
			if err := r.write(uid, dir, strings.Fields(volumes)); err != nil {
				r.t.Error(err)
				return
			}
		}
		time.Sleep(time.Duration(random.Int64N(int64(200 * time.Millisecond)))) // it lives
		if err := os.Remove(wanted); err != nil {
			r.t.Error(err)
			return
		}
		if !r.await(time.Minute, func() bool { _, err := os.Stat(dir); return errors.Is(err, fs.ErrNotExist) }) {
			r.t.Errorf("pod %s does not end", uid)
			return
		}
		r.mu.Lock()
		r.done++
		r.mu.Unlock()
	}
}

// write writes a pod's name into its volumes where its containers would see them.
func (r *killRig) write(uid, dir string, volumes []string) error {
	places, err := filepath.Glob(filepath.Join(dir, "volumes/kubernetes.io~csi/*/mount"))
	if err != nil || len(places) != len(volumes) {
		return fmt.Errorf("pod %s has %q for %q, %v", uid, places, volumes, err)
	}
	for _, place := range places {
		if mounted, err := mount.System().IsMount(place); err != nil || !mounted {
			return fmt.Errorf("nothing is mounted at %s: %v", place, err)
		}
		if err := os.WriteFile(filepath.Join(place, uid), []byte(uid), 0o600); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, claim := range volumes {
		if slices.Contains(killedClaims, claim) {
			r.wrote[claim] = append(r.wrote[claim], uid)
		}
	}
	return nil
}
