package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Pods of the run: one of each role stays during the whole run, the others come and go.
const podsAtOnce = 30

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

// TestNeverLoseAPod kills a node's kubelet repeatedly (WINKUBE_KILLS times, at moments chosen by WINKUBE_SEED) while 30
// pods come and go.
func TestNeverLoseAPod(t *testing.T) {
	kills, seed := number(t, "WINKUBE_KILLS", 30), uint64(number(t, "WINKUBE_SEED", int(time.Now().Unix()%100000)))
	t.Logf("%d kills, WINKUBE_SEED=%d", kills, seed)
	s := newSpace(t)
	ctx := context.Background()
	host := cluster.Nodes[0]
	s.allReady(3 * time.Minute)
	// Compare the agent's figures at the end with those of a fresh agent.
	s.must(host.Process("kubelet").Restart(ctx))
	s.nodeReady(host.Name, true, time.Minute)
	s.allReady(3 * time.Minute)
	w := watchEngine(t, host, s.name)
	before, err := inventoryOf(ctx, host)
	s.must(err)
	figures := s.settledFigures(host.Name)

	r := &run{cast: newCast(s, host), w: w, done: map[string]int{}}
	steady := r.steady()
	k := &killer{host: host, random: rand.New(rand.NewPCG(seed, 1)), w: w, how: map[string]int{}}
	churn, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	for i := range podsAtOnce - len(roles) {
		group.Go(func() { r.churn(churn, i, rand.New(rand.NewPCG(seed, uint64(i+2)))) })
	}
	begin := time.Now()
	for n := 0; n < kills && !t.Failed(); n++ {
		s.must(k.strike(ctx))
	}
	took := time.Since(begin)
	stop()
	group.Wait()
	r.still(steady)
	left := r.leave(steady, before)
	var after agentFigures
	if err := until(3*time.Minute, func() error { // connections to the engine stay open for a while
		if after = s.figures(host.Name); after.Goroutines > figures.Goroutines+15 || after.FDs > figures.FDs+8 {
			return fmt.Errorf("the agent has %+v, had %+v", after, figures)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	r.print(k, took, figures, after, left)
}

// run is the state of one test.
type run struct {
	*cast
	w *witness

	mu   sync.Mutex
	done map[string]int // pods by role that came and went
	pods atomic.Int32   // current number

	deletedEarly, hooksRun, hooksAgain int
	mostPods                           int32
}

// steady creates one pod of each role and waits until they reach their state.
func (r *run) steady() []*v1.Pod {
	r.Helper()
	var pods []*v1.Pod
	for _, role := range roles {
		pods = append(pods, r.create(r.play(role, "steady")))
	}
	r.pods.Add(int32(len(pods)))
	for i, role := range roles {
		r.eventually(3*time.Minute, pods[i].Name, func(ctx context.Context) (err error) {
			pods[i], err = client.CoreV1().Pods(r.name).Get(ctx, pods[i].Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			return role.reached(pods[i])
		})
	}
	return pods
}

// reached returns nil if a pod has reached its role's state.
func (r role) reached(pod *v1.Pod) error {
	switch {
	case r.succeeds:
		if pod.Status.Phase != v1.PodSucceeded {
			return fmt.Errorf("pod %s is %s, want Succeeded: %+v", pod.Name, pod.Status.Phase, pod.Status.ContainerStatuses)
		}
		return nil
	case r.ends:
		if len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].RestartCount < 1 {
			return fmt.Errorf("pod %s was not restarted yet: %+v", pod.Name, pod.Status.ContainerStatuses)
		}
		return nil
	}
	return isReady(pod)
}

// still compares the steady pods with their earlier state.
func (r *run) still(pods []*v1.Pod) {
	r.Helper()
	r.unchanged(pods)
	r.noCommandsLeft(pods)
}

// unchanged is still, except for commands: an engine that was restarted does not know those that it started before.
func (r *run) unchanged(pods []*v1.Pod) {
	r.Helper()
	for i, role := range roles {
		was := pods[i]
		r.eventually(2*time.Minute, was.Name+" as it was", func(ctx context.Context) error {
			now, err := client.CoreV1().Pods(r.name).Get(ctx, was.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if err := role.reached(now); err != nil || role.ends && !role.succeeds {
				return err
			}
			for n, st := range slices.Concat(now.Status.InitContainerStatuses, now.Status.ContainerStatuses) {
				if old := slices.Concat(was.Status.InitContainerStatuses, was.Status.ContainerStatuses)[n]; old.ContainerID != st.ContainerID || old.RestartCount != st.RestartCount {
					return fmt.Errorf("container %s: %s restarted %d times, was %s, %d times", st.Name, st.ContainerID, st.RestartCount, old.ContainerID, old.RestartCount)
				}
			}
			if now.UID != was.UID || now.Status.PodIP != was.Status.PodIP {
				return fmt.Errorf("UID %s, address %s; were %s, %s", now.UID, now.Status.PodIP, was.UID, was.Status.PodIP)
			}
			return nil
		})
	}
}

// noCommandsLeft waits until the containers have no processes but their own: an agent kills the commands that its
// predecessor left.
func (r *run) noCommandsLeft(pods []*v1.Pod) {
	r.Helper()
	r.eventually(time.Minute, "end of the commands of killed agents", func(ctx context.Context) error {
		for _, pod := range pods {
			for _, st := range pod.Status.ContainerStatuses {
				if st.State.Running == nil || endsByItself(pod.Name, st.Name) {
					continue
				}
				processes, err := r.host.Engine().Processes(ctx, strings.TrimPrefix(st.ContainerID, "docker://"))
				if err != nil {
					return err
				}
				if most := 2; len(processes) > most { // its own, and a probe's
					return fmt.Errorf("container %s of %s has %d processes: %q", st.Name, pod.Name, len(processes), processes)
				}
			}
		}
		return nil
	})
}

// churn lets pods come and go until ctx ends.
func (r *run) churn(ctx context.Context, slot int, random *rand.Rand) {
	for n := 0; ctx.Err() == nil && !r.Failed(); n++ {
		role := roles[random.IntN(len(roles))]
		pause := func(longest time.Duration) {
			select {
			case <-time.After(time.Duration(random.Int64N(int64(longest)))):
			case <-ctx.Done():
			}
		}
		pause(2 * time.Second)
		early := random.IntN(4) == 0
		if err := r.live(ctx, role, fmt.Sprintf("%d-%d", slot, n), early, pause); err != nil {
			r.Errorf("%s %v", time.Now().Format("15:04:05.000"), err)
			return
		}
		r.mu.Lock()
		r.done[role.name]++
		if early {
			r.deletedEarly++
		}
		r.mu.Unlock()
	}
}

// live runs one pod's life: it creates, checks and deletes the pod, and checks what it left.
func (r *run) live(ctx context.Context, role role, suffix string, early bool, pause func(time.Duration)) error {
	always := context.Background()
	pods := client.CoreV1().Pods(r.name)
	pod, err := pods.Create(always, r.play(role, suffix), metav1.CreateOptions{})
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.mostPods = max(r.mostPods, r.pods.Add(1))
	r.mu.Unlock()
	defer r.pods.Add(-1)
	if early {
		pause(3 * time.Second)
	} else {
		if err := until(6*time.Minute, func() error {
			now, err := pods.Get(always, pod.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			return role.reached(now)
		}); err != nil {
			return fmt.Errorf("pod %s: %w", pod.Name, err)
		}
		if role.postStart && r.noted(pod, "postStart") == 0 {
			return fmt.Errorf("pod %s is Ready but its postStart hook never ran", pod.Name)
		}
		pause(6 * time.Second)
	}
	r.w.mayEnd(string(pod.UID))
	asked := time.Now()
	if err := pods.Delete(always, pod.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}}); err != nil {
		return err
	}
	if err := until(5*time.Minute, func() error {
		_, err := pods.Get(always, pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("not gone (%v)", err)
	}); err != nil {
		return fmt.Errorf("pod %s, deleted %s ago: %w", pod.Name, time.Since(asked).Round(time.Second), err)
	}
	return r.lived(role, pod, asked)
}

// until repeats ok until it returns nil.
func until(patience time.Duration, ok func() error) error {
	for end := time.Now().Add(patience); ; time.Sleep(300 * time.Millisecond) {
		err := ok()
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

// lived checks the notes of a pod that is gone.
func (r *run) lived(role role, pod *v1.Pod, asked time.Time) error {
	mains := r.w.of(string(pod.UID), "main")
	if len(mains) == 0 {
		return nil // it never reached that state
	}
	if role.preStop {
		times := r.noted(pod, "preStop")
		if times == 0 {
			return fmt.Errorf("pod %s ran and was deleted, but its preStop hook never ran", pod.Name)
		}
		r.mu.Lock()
		r.hooksRun++
		if times > 1 || r.noted(pod, "postStart") > 1 {
			r.hooksAgain++
		}
		r.mu.Unlock()
	}
	if took := mains[0].died.Sub(asked); role.sleeps > 0 && took < time.Duration(role.sleeps)*time.Second {
		return fmt.Errorf("pod %s ended %s after its deletion, but its preStop hook sleeps for %d s", pod.Name, took, role.sleeps)
	}
	if runs := r.noted(pod, "run"); role.ends && runs > len(mains) || role.succeeds && len(mains) > 1 {
		return fmt.Errorf("pod %s: its container ran %d times, was started %d times", pod.Name, runs, len(mains))
	}
	if role.name == "inits" && (r.noted(pod, "init-1") != 1 || r.noted(pod, "init-2") != 1) {
		return fmt.Errorf("pod %s: its init containers completed %d and %d times, want once", pod.Name, r.noted(pod, "init-1"), r.noted(pod, "init-2"))
	}
	return nil
}

// leave deletes the steady pods and waits until the host has nothing more than before. It returns what is left.
func (r *run) leave(pods []*v1.Pod, before inventory) []string {
	r.Helper()
	ctx := context.Background()
	for _, pod := range pods {
		r.w.mayEnd(string(pod.UID))
		r.must(client.CoreV1().Pods(r.name).Delete(ctx, pod.Name, metav1.DeleteOptions{}))
	}
	var left []string
	err := until(4*time.Minute, func() error {
		list, err := client.CoreV1().Pods(r.name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		have, err := inventoryOf(ctx, r.host)
		if err != nil {
			return err
		}
		if left = before.more(have); len(left) > 0 || len(list.Items) > 0 {
			return fmt.Errorf("%d pods and left behind:\n  %s", len(list.Items), strings.Join(left, "\n  "))
		}
		return nil
	})
	if err != nil {
		r.Error(err)
	}
	return left
}

// print shows the results as a table.
func (r *run) print(k *killer, took time.Duration, before, after agentFigures, left []string) {
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	row := func(what string, format string, args ...any) {
		fmt.Fprintf(table, "%s\t%s\n", what, fmt.Sprintf(format, args...))
	}
	list := func(counts map[string]int) string {
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			parts = append(parts, fmt.Sprintf("%s %d", name, counts[name]))
		}
		return strings.Join(parts, ", ")
	}
	total := 0
	for _, n := range k.how {
		total += n
	}
	pods := 0
	for _, n := range r.done {
		pods += n
	}
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	row("kills", "%d in %.0f s (%s); dead for %.1f s altogether", total, took.Seconds(), list(k.how), k.down.Seconds())
	row("pods", "%d at most at the same time, %d came and went (%s), %d of them deleted before they were ready", r.mostPods, pods, list(r.done), r.deletedEarly)
	row("containers", "%d created, %d started, %d destroyed", r.w.counts["create"], r.w.counts["start"], r.w.counts["destroy"])
	row("lives that were wrong", "%d (restarted, run twice at the same time, an attempt or a done init container run again, a second sandbox)", len(r.w.wrong))
	row("hooks", "none of %d pods skipped; run again in %d", r.hooksRun, r.hooksAgain)
	row("left behind", "%d (containers, mounts, network interfaces, pod directories, names of logs, cgroups)", len(left))
	row("goroutines", "%d before, %d after", before.Goroutines, after.Goroutines)
	row("descriptors", "%d before, %d after", before.FDs, after.FDs)
	row("RSS", "%.1f MiB before, %.1f MiB after", before.RSS, after.RSS)
	table.Flush()
	r.Logf("never lose a pod\n%s", out.String())
}
