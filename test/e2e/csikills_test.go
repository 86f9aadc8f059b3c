package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/winkube/winkube/test/csidriver"
	"github.com/winkube/winkube/test/lab"
)

// csiSlots are the volumes of the pods that come and go in TestCSIKills, one pod of each at a time: names of claims, and inline for an inline volume.
// Two slots share a claim, so that its volume is also published where it is staged.
var csiSlots = [][]string{{"one"}, {"two", inline}, {inline}, {inline, inline}, {"shared"}, {"shared"}}

// csiSteady are those of the pods that stay.
var csiSteady = [][]string{{"steady"}, {"steady", inline}, {inline}}

const inline = "inline"

// TestCSIKills kills a node's kubelet, the CSI driver or both (WINKUBE_CSI_KILLS times, at moments chosen by WINKUBE_SEED) while pods with volumes of
// that driver come and go. No pod notices, every volume has what was written to it, and nothing is left.
func TestCSIKills(t *testing.T) {
	kills, seed := number(t, "WINKUBE_CSI_KILLS", 6), uint64(number(t, "WINKUBE_SEED", int(time.Now().Unix()%100000)))
	t.Logf("%d kills, WINKUBE_SEED=%d", kills, seed)
	s := newSpace(t)
	ctx := context.Background()
	s.allReady(3 * time.Minute)
	d := newCSIDriver(s, cluster.Nodes[1])
	before, err := inventoryOf(ctx, d.node)
	s.must(err)
	r := &csiRun{csiDriver: d, w: watchEngine(t, d.node, s.name), handles: map[string]string{}, wrote: map[string][]string{}, done: map[string]int{}}
	for _, claim := range []string{"one", "two", "shared", "steady"} {
		r.handles[claim] = d.claim(claim)
	}

	var steady []*v1.Pod
	for i, volumes := range csiSteady {
		steady = append(steady, s.create(r.with(fmt.Sprintf("steady-%d", i), volumes)))
	}
	for i, pod := range steady {
		steady[i] = s.ready(pod.Name)
	}
	churn, stop := context.WithCancel(ctx)
	defer stop()
	var group sync.WaitGroup
	for i, volumes := range csiSlots {
		group.Go(func() { r.churn(churn, i, volumes, rand.New(rand.NewPCG(seed, uint64(i+2)))) })
	}
	k := &csiKiller{csiDriver: d, random: rand.New(rand.NewPCG(seed, 1)), how: map[string]int{}}
	begin := time.Now()
	for n := 0; n < kills && !t.Failed(); n++ {
		s.must(k.strike(ctx))
		r.twice()
	}
	took := time.Since(begin)
	stop()
	group.Wait()
	d.revive()
	r.still(steady)
	r.leave(steady, before)
	r.kept()
	d.inOrder()
	r.w.stop()
	total := 0
	for _, n := range r.done {
		total += n
	}
	t.Logf("%d kills in %.0f s: %s; %d pods came and went: %s; %d files in %d volumes, %d containers started, %d lives that were wrong",
		kills, took.Seconds(), counted(k.how), total, counted(r.done), r.files(), len(r.handles), r.w.counts["start"], len(r.w.wrong))
}

func counted(n map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(n)) {
		parts = append(parts, fmt.Sprintf("%s %d", name, n[name]))
	}
	return strings.Join(parts, ", ")
}

// csiRun is the state of the test.
type csiRun struct {
	*csiDriver
	w       *witness
	handles map[string]string // of claims' volumes

	mu    sync.Mutex
	wrote map[string][]string // pods that wrote into the volume of a claim
	done  map[string]int      // pods that came and went
}

// with returns a pod that writes its name into a file of each volume, and is Ready as long as it can read them.
func (r *csiRun) with(name string, volumes []string) *v1.Pod {
	pod := r.pod(name, r.node)
	var script, files []string
	main := &pod.Spec.Containers[0]
	for i, volume := range volumes {
		source := v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: lab.CSIDriverName}}
		if volume != inline {
			source = claimed(volume)
		}
		at := fmt.Sprintf("v%d", i)
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: at, VolumeSource: source})
		main.VolumeMounts = append(main.VolumeMounts, v1.VolumeMount{Name: at, MountPath: "/" + at})
		file := "/" + at + "/" + name
		script, files = append(script, "write "+file+" "+name), append(files, file)
	}
	main.Args = []string{"shell", "-c", strings.Join(append(script, "sleep"), ";")}
	readsAll(pod, files...)
	return pod
}

// churn lets pods of a slot come and go until ctx ends.
func (r *csiRun) churn(ctx context.Context, slot int, volumes []string, random *rand.Rand) {
	for n := 0; ctx.Err() == nil && !r.Failed(); n++ {
		early := random.IntN(4) == 0
		stay := time.Duration(random.Int64N(int64(2 * time.Second)))
		if err := r.live(ctx, r.with(fmt.Sprintf("p%d-%d", slot, n), volumes), volumes, early, stay); err != nil {
			r.Errorf("%s %v", time.Now().Format("15:04:05.000"), err)
			return
		}
		what := strings.Join(volumes, "+")
		if early {
			what = "early"
		}
		r.mu.Lock()
		r.done[what]++
		r.mu.Unlock()
	}
}

// live runs one pod's life: until it is Ready, or not, and some time longer. The next pod of the slot finds the volume as this one leaves it.
func (r *csiRun) live(ctx context.Context, pod *v1.Pod, volumes []string, early bool, stay time.Duration) error {
	always := context.Background()
	pods := client.CoreV1().Pods(r.name)
	pod, err := pods.Create(always, pod, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if !early {
		if err := until(3*time.Minute, func() error {
			now, err := pods.Get(always, pod.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			return isReady(now)
		}); err != nil {
			return err
		}
	}
	select {
	case <-time.After(stay):
	case <-ctx.Done():
	}
	if !early {
		if err := r.has(pod, volumes); err != nil {
			return err
		}
	}
	r.w.mayEnd(string(pod.UID))
	asked := time.Now()
	if err := pods.Delete(always, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}); err != nil {
		return err
	}
	if err := until(3*time.Minute, func() error {
		_, err := pods.Get(always, pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("not gone (%v)", err)
	}); err != nil {
		return fmt.Errorf("pod %s, deleted %s ago: %w", pod.Name, time.Since(asked).Round(time.Second), err)
	}
	return nil
}

// has compares what the volumes of a pod have, where the container sees them, with what the pod wrote. It notes what the driver must keep.
func (r *csiRun) has(pod *v1.Pod, volumes []string) error {
	files, err := filepath.Glob(r.node.Dir("kubelet", "pods", string(pod.UID), "volumes", "kubernetes.io~csi", "*", "mount", pod.Name))
	if err != nil {
		return err
	}
	if len(files) != len(volumes) {
		return fmt.Errorf("pod %s is Ready, but its %d volumes have the files %q", pod.Name, len(volumes), files)
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err != nil || string(text) != pod.Name+"\n" {
			return fmt.Errorf("%s has %q, %v; want the pod's name", file, text, err)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, volume := range volumes {
		if volume != inline {
			r.wrote[volume] = append(r.wrote[volume], pod.Name)
		}
	}
	return nil
}

// twice looks for places where a volume is mounted more than once.
func (r *csiRun) twice() {
	r.Helper()
	seen := map[string]bool{}
	for _, line := range r.left() {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue // a record
		}
		if seen[fields[1]] {
			r.Errorf("mounted twice: %s", line)
		}
		seen[fields[1]] = true
	}
}

// still compares the pods that stay with their earlier state.
func (r *csiRun) still(pods []*v1.Pod) {
	r.Helper()
	for i, was := range pods {
		now := r.ready(was.Name)
		old, status := was.Status.ContainerStatuses[0], now.Status.ContainerStatuses[0]
		if now.UID != was.UID || status.ContainerID != old.ContainerID || status.RestartCount != old.RestartCount {
			r.Errorf("pod %s is %s, %s restarted %d times; was %s, %s", was.Name, now.UID, status.ContainerID, status.RestartCount, was.UID, old.ContainerID)
		}
		if err := r.has(now, csiSteady[i]); err != nil {
			r.Error(err)
		}
	}
}

// leave deletes the pods that stay and waits until the node has nothing more than before, nor the driver anything of an inline volume.
func (r *csiRun) leave(pods []*v1.Pod, before inventory) {
	r.Helper()
	var names []string
	for _, pod := range pods {
		r.w.mayEnd(string(pod.UID))
		names = append(names, pod.Name)
	}
	r.ends(names...)
	r.eventually(2*time.Minute, "nothing left", func(ctx context.Context) error {
		have, err := inventoryOf(ctx, r.node)
		if err != nil {
			return err
		}
		left := append(before.more(have), r.left()...)
		staged, err := filepath.Glob(r.node.Dir("kubelet", "plugins", "kubernetes.io", "csi", lab.CSIDriverName, "*"))
		garbage, more := r.outside().Garbage()
		volumes, last := r.outside().Volumes()
		if err := errors.Join(err, more, last); err != nil {
			return err
		}
		left = slices.Concat(left, staged, garbage)
		for _, id := range volumes {
			if !slices.Contains(slices.Collect(maps.Values(r.handles)), id) {
				left = append(left, "the driver's volume "+id)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("left:\n  %s", strings.Join(left, "\n  "))
		}
		return nil
	})
}

// kept compares the driver's volumes with everything that pods wrote.
func (r *csiRun) kept() {
	r.Helper()
	for claim, names := range r.wrote {
		for _, name := range names {
			file := filepath.Join(r.outside().Content(r.handles[claim]), name)
			if text, err := os.ReadFile(file); err != nil || string(text) != name+"\n" {
				r.Errorf("claim %s: %s has %q, %v; want %q", claim, file, text, err, name)
			}
		}
	}
}

func (r *csiRun) files() (n int) {
	for _, names := range r.wrote {
		n += len(names)
	}
	return n
}

// csiKiller kills the kubelet and the driver at critical moments.
type csiKiller struct {
	*csiDriver
	random *rand.Rand
	how    map[string]int // kills by victim and moment
}

// strike lets both run for a while, kills one of them or both, and starts them again. Half of the kills come while the driver has a call, before or
// after its work.
func (k *csiKiller) strike(ctx context.Context) error {
	pause := func(longest time.Duration) { time.Sleep(time.Duration(k.random.Int64N(int64(longest)))) }
	pause(1500 * time.Millisecond)
	victims := [][]string{{"kubelet"}, {"csidriver"}, {"kubelet", "csidriver"}}[k.random.IntN(3)]
	moment, method := "at random", csidriver.Methods[k.random.IntN(len(csidriver.Methods))]
	stop, when := k.outside().Hang, "before the work of "
	if k.random.IntN(2) == 0 {
		stop, when = k.outside().Linger, "after the work of "
	}
	dead, long := time.Duration(0), k.random.IntN(4) == 0
	if long {
		dead = time.Duration(k.random.Int64N(int64(1500 * time.Millisecond)))
	}
	if k.random.IntN(4) > 0 {
		if err := stop(method); err != nil {
			return err
		}
		found, err := k.caught(ctx, method)
		if err != nil {
			return err
		}
		if found {
			moment = when + method
		}
	}
	for _, name := range victims {
		if name == "kubelet" {
			k.killKubelet()
		} else if err := k.process().Kill9(ctx); err != nil {
			return err
		}
	}
	k.how[strings.Join(victims, " and ")+" "+moment]++
	time.Sleep(dead) // pods come and go meanwhile
	if err := k.outside().Resume(method); err != nil {
		return err
	}
	for _, i := range k.random.Perm(len(victims)) {
		if err := k.node.Process(victims[i]).Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// caught waits until the driver has a call of a method, and reports whether one came.
func (k *csiKiller) caught(ctx context.Context, method string) (bool, error) {
	err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, 3*time.Second, true, func(context.Context) (bool, error) {
		return k.outside().UnderWay(method)
	})
	if wait.Interrupted(err) {
		return false, nil
	}
	return err == nil, err
}
