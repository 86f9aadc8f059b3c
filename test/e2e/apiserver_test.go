package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
)

// outage tests what happens while the API server is down.
type outage struct {
	*traffic
	first, second *lab.Host
	healthy       string // without this file the pod "sick" fails its liveness probe
	lines         []string
}

// TestAPIServerGone stops the API server for WINKUBE_OUTAGE: pods continue without it, even if the agent is killed
// meanwhile, and everything is reported afterwards.
func TestAPIServerGone(t *testing.T) {
	length := 45 * time.Second
	if text := os.Getenv("WINKUBE_OUTAGE"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil || length < 45*time.Second {
			t.Fatalf("WINKUBE_OUTAGE=%q: want a duration of at least 45s (%v)", text, err)
		}
	}
	tr := startTraffic(t)
	ctx := context.Background()
	o := &outage{traffic: tr, first: cluster.Nodes[0], second: cluster.Nodes[1]}
	o.stage()
	before := o.others()
	api := cluster.Control.Process("kube-apiserver")
	back := sync.OnceFunc(func() { tr.must(cluster.RestoreAPIServer(ctx)) })
	t.Cleanup(back)
	longest, seen := tr.during(length, func() {
		o.ask("pod leaving deleted", func() error { return client.CoreV1().Pods(tr.name).Delete(ctx, "leaving", metav1.DeleteOptions{}) })
		tr.must(api.Stop(ctx))
		o.happen()
	})
	begin := time.Now()
	back()
	o.note("API server answers again", begin)
	o.reported(begin)
	if longest > 0 {
		t.Errorf("the service was silent for %s:\n%s", longest, seen)
	}
	if diff := difference(strings.Join(before, "\n"), strings.Join(o.others(), "\n")); diff != "" {
		t.Errorf("containers were restarted without reason:\n%s", diff)
	}
	stream := tr.unbroken()
	begin = time.Now()
	tr.create(tr.pod("after", o.first, "sleep"))
	tr.ready("after")
	o.note("a new pod Ready", begin)
	t.Logf("API server down for %s: service never silent, pod-to-pod %s, %d other containers untouched\n%s", length, stream, len(before), o.table())
}

func (o *outage) note(what string, since time.Time) {
	o.lines = append(o.lines, fmt.Sprintf("%s\tafter %.1f s", what, time.Since(since).Seconds()))
}

func (o *outage) ask(what string, do func() error) {
	o.Helper()
	begin := time.Now()
	o.must(do())
	o.note(what, begin)
}

func (o *outage) table() string {
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, line := range o.lines {
		fmt.Fprintln(table, line)
	}
	table.Flush()
	return out.String()
}

const staticOutage = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "static-outage", "namespace": %q},
"spec": {"containers": [{"name": "main", "image": %q, "args": ["sleep"]}]}}`

// stage creates the pods that will be affected.
func (o *outage) stage() {
	o.Helper()
	ctx := context.Background()
	o.create(o.pod("short", o.first, "sleep"))
	o.create(o.pod("late", o.second, "sleep")) // exits under an agent that has no pods from the API server
	notes := o.first.Dir("outage-" + o.name)
	o.must(os.MkdirAll(notes, 0o755))
	o.Cleanup(func() { os.RemoveAll(notes) })
	o.healthy = filepath.Join(notes, "ok")
	o.must(os.WriteFile(o.healthy, nil, 0o644))
	sick := o.pod("sick", o.first, "sleep")
	sick.Spec.Volumes = []v1.Volume{{Name: "notes", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: notes}}}}
	sick.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "notes", MountPath: "/notes"}}
	sick.Spec.Containers[0].LivenessProbe = &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: sample("cat", "/notes/ok")}, PeriodSeconds: 1, TimeoutSeconds: 10, FailureThreshold: 2}
	o.create(sick)
	leaving := o.pod("leaving", o.first, "sleep")
	leaving.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 3}}}
	grace := int64(10)
	leaving.Spec.TerminationGracePeriodSeconds = &grace
	o.create(leaving)
	work := o.pod("work", o.first, "sleep")
	work.Spec.RestartPolicy = v1.RestartPolicyNever
	_, err := client.BatchV1().Jobs(o.name).Create(ctx, &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "work"}, Spec: batchv1.JobSpec{Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: work.Labels}, Spec: work.Spec}},
	}, metav1.CreateOptions{})
	o.must(err)
	manifest := o.second.Dir("manifests", "outage.yaml")
	o.must(os.WriteFile(manifest, fmt.Appendf(nil, staticOutage, o.name, lab.SampleImage), 0o644))
	o.Cleanup(func() { os.Remove(manifest) })
	for _, name := range []string{"sick", "leaving", "late", "short"} {
		o.ready(name)
	}
	o.eventually(time.Minute, "static pod and job", func(ctx context.Context) error {
		if _, err := client.CoreV1().Pods(o.name).Get(ctx, "static-outage-"+o.second.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		for pod, host := range map[string]*lab.Host{"work-": o.first, "static-outage": o.second} {
			if running := o.containers(host, pod); len(running) == 0 || running[0].State != "running" {
				return fmt.Errorf("%s has %v", pod, running)
			}
		}
		return nil
	})
}

// containers returns the app containers of the namespace's pods with this name prefix, newest first.
func (o *outage) containers(host *lab.Host, pod string) []lab.Container {
	o.Helper()
	list, err := host.Engine().Containers(context.Background())
	o.must(err)
	list = slices.DeleteFunc(list, func(c lab.Container) bool {
		return c.Labels["io.kubernetes.pod.namespace"] != o.name || !strings.HasPrefix(c.Labels["io.kubernetes.pod.name"], pod) ||
			c.Labels["io.kubernetes.container.name"] != "main"
	})
	slices.SortFunc(list, func(a, b lab.Container) int { return restartCount(b) - restartCount(a) })
	return list
}

// restartCount returns the restart count in a container's labels.
func restartCount(container lab.Container) int {
	count, _ := strconv.Atoi(container.Labels["annotation.io.kubernetes.container.restartCount"])
	return count
}

// others lists the running containers of both engines that must not be affected.
func (o *outage) others() []string {
	o.Helper()
	noisy := []string{"short", "late", "sick", "leaving", "work", "static-outage", "after"}
	var ids []string
	for _, host := range cluster.Nodes {
		list, err := host.Engine().Containers(context.Background())
		o.must(err)
		for _, c := range list {
			name := c.Labels["io.kubernetes.pod.name"]
			if c.State == "running" && !slices.ContainsFunc(noisy, func(n string) bool { return strings.HasPrefix(name, n) }) {
				ids = append(ids, host.Name+" "+name+" "+c.ID)
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// happen makes the changes while the API server is unreachable.
func (o *outage) happen() {
	o.Helper()
	begin := time.Now()
	wait := func(what string, ok func() error) {
		o.Helper()
		o.eventually(2*time.Minute, what, func(context.Context) error { return ok() })
		o.note(what, begin)
	}
	attempts := func(host *lab.Host, pod string, least int) func() error {
		return func() error {
			if list := o.containers(host, pod); len(list) == 0 || restartCount(list[0]) < least {
				return fmt.Errorf("no attempt %d of %s", least, pod)
			}
			return nil
		}
	}
	ended := func(host *lab.Host, pod string) func() error {
		return func() error {
			if list := o.containers(host, pod); len(list) > 0 && list[0].State == "running" {
				return fmt.Errorf("%s runs", pod)
			}
			return nil
		}
	}
	o.must(o.second.Process("kubelet").Kill9(context.Background()))
	o.must(o.second.Process("kubelet").Start(context.Background()))
	static, short := restartCount(o.containers(o.second, "static-outage")[0]), restartCount(o.containers(o.first, "short")[0])
	for pod, host := range map[string]*lab.Host{"short": o.first, "work-": o.first, "late": o.second, "static-outage": o.second} {
		o.must(host.Engine().Terminate(context.Background(), o.containers(host, pod)[0].ID))
	}
	o.must(os.Remove(o.healthy))
	wait("away: a container that fails its liveness probe restarted", attempts(o.first, "sick", 1))
	o.must(os.WriteFile(o.healthy, nil, 0o644))
	wait("away: a deleted pod's container ended", ended(o.first, "leaving"))
	wait("away: a container that ended restarted", attempts(o.first, "short", short+1))
	wait("away: a static pod's restarted under a new agent", attempts(o.second, "static-outage", static+1))
	wait("away: a job's container ended", ended(o.first, "work-"))
	wait("away: an API pod's container ended under a new agent", ended(o.second, "late"))
}

// reported waits until every change is reported.
func (o *outage) reported(begin time.Time) {
	o.Helper()
	for _, node := range cluster.Nodes {
		o.nodeReady(node.Name, true, 2*time.Minute)
		o.eventually(2*time.Minute, "lease of "+node.Name, func(ctx context.Context) error {
			lease, err := client.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(ctx, node.Name, metav1.GetOptions{})
			if err == nil && (lease.Spec.RenewTime == nil || lease.Spec.RenewTime.Before(&metav1.MicroTime{Time: begin})) {
				err = fmt.Errorf("last renewed at %v", lease.Spec.RenewTime)
			}
			return err
		})
	}
	o.note("back: both nodes Ready, leases renewed", begin)
	for _, pod := range []struct {
		name string
		host *lab.Host
	}{{"sick", o.first}, {"short", o.first}, {"late", o.second}} {
		o.eventually(2*time.Minute, "status of "+pod.name, func(ctx context.Context) error {
			got, err := client.CoreV1().Pods(o.name).Get(ctx, pod.name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			newest, st := o.containers(pod.host, pod.name)[0], got.Status.ContainerStatuses[0]
			if restartCount(newest) < 1 || int(st.RestartCount) != restartCount(newest) || st.ContainerID != "docker://"+newest.ID || st.LastTerminationState.Terminated == nil {
				return fmt.Errorf("the API has %+v, the engine has attempt %d, %s", st, restartCount(newest), newest.ID)
			}
			return nil
		})
	}
	o.note("back: restarts reported correctly", begin)
	o.eventually(2*time.Minute, "pod leaving gone", func(ctx context.Context) error {
		if _, err := client.CoreV1().Pods(o.name).Get(ctx, "leaving", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("still there (%v)", err)
		}
		return nil
	})
	o.note("back: the deleted pod gone", begin)
	o.eventually(2*time.Minute, "job complete", func(ctx context.Context) error {
		job, err := client.BatchV1().Jobs(o.name).Get(ctx, "work", metav1.GetOptions{})
		if err == nil && (job.Status.Succeeded != 1 || job.Status.Failed != 0 || job.Status.Active != 0) {
			err = fmt.Errorf("status %+v", job.Status)
		}
		return err
	})
	o.note("back: the job complete, by its one pod", begin)
}
