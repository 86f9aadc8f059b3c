package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/winkube/winkube/test/lab"
)

func (d *days) must(err error) {
	d.Helper()
	if err != nil {
		d.Fatal(err)
	}
}

// run runs a line on the machine.
func (d *days) run(line string) string {
	d.Helper()
	ctx, cancel := context.WithTimeout(d.Context(), 10*time.Minute)
	defer cancel()
	out, err := d.vm.Run(ctx, line)
	if err != nil {
		d.Fatal(err)
	}
	return out
}

// slack is how much longer than usual all may take: the emulated processors share this machine's with other work.
const slack = 3

// eventually repeats ok until it returns nil.
func (d *days) eventually(patience time.Duration, what string, ok func(context.Context) error) {
	d.Helper()
	var last error
	err := wait.PollUntilContextTimeout(context.Background(), 500*time.Millisecond, slack*patience, true, func(context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		last = ok(ctx)
		return last == nil, nil
	})
	if err != nil {
		d.Fatalf("%s: not after %s: %v", what, slack*patience, last)
	}
}

// diagnose prints what a failure on the machine leaves.
func (d *days) diagnose() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for _, line := range []string{"journalctl --no-pager -n 80 -u kubelet -u proxy", "docker ps -a", "systemctl --failed --no-pager"} {
		out, err := d.vm.Run(ctx, line)
		d.Logf("$ %s\n%s%v", line, out, err)
	}
	console, err := os.ReadFile(d.vm.Console)
	d.Logf("console: %s%v", console[max(0, len(console)-3000):], err)
}

// comesUp waits for a boot that is not the one before, and returns it.
func (d *days) comesUp(before string) string {
	d.Helper()
	ctx, cancel := context.WithTimeout(d.Context(), slack*6*time.Minute)
	defer cancel()
	for {
		now, err := d.vm.Boot(ctx)
		if err != nil {
			d.Fatal(err)
		}
		if now != before {
			return now
		}
		select {
		case <-ctx.Done():
			d.Fatal("the machine does not boot again")
		case <-time.After(time.Second):
		}
	}
}

// clean removes from the cluster what a test has left.
func (d *days) clean() {
	ctx, now, ours := context.Background(), metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, metav1.ListOptions{LabelSelector: "vm=yes"}
	if err := d.client.CoreV1().Nodes().Delete(ctx, d.vm.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		d.Error(err)
	}
	core := d.client.CoreV1()
	if err := errors.Join(core.Pods(space).DeleteCollection(ctx, now, ours), core.PersistentVolumeClaims(space).DeleteCollection(ctx, now, ours), core.PersistentVolumes().DeleteCollection(ctx, now, ours)); err != nil {
		d.Error(err)
	}
}

func (d *days) nodeReady(patience time.Duration) {
	d.Helper()
	d.eventually(patience, "Node Ready", func(ctx context.Context) error {
		node, err := d.client.CoreV1().Nodes().Get(ctx, d.vm.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == v1.NodeReady && c.Status == v1.ConditionTrue {
				return nil
			}
		}
		return errors.New("it is not")
	})
}

// pod returns a pod on the machine, of the sample image.
func (d *days) pod(name string, args ...string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "vm-" + name, Namespace: space, Labels: map[string]string{"vm": "yes", "app": "vm-" + name}},
		Spec: v1.PodSpec{
			NodeName: d.vm.Name, TerminationGracePeriodSeconds: new(int64(5)),
			Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists}}, // it stays while the machine is off
			Containers:  []v1.Container{{Name: "main", Image: lab.SampleImage, Args: args}},
		},
	}
}

func (d *days) create(p *v1.Pod) {
	d.Helper()
	if _, err := d.client.CoreV1().Pods(space).Create(d.Context(), p, metav1.CreateOptions{}); err != nil {
		d.Fatal(err)
	}
}

// until waits for a pod, and returns it.
func (d *days) until(name, what string, ok func(*v1.Pod) bool) (p *v1.Pod) {
	d.Helper()
	d.eventually(4*time.Minute, "pod "+name+" "+what, func(ctx context.Context) (err error) {
		if p, err = d.client.CoreV1().Pods(space).Get(ctx, "vm-"+name, metav1.GetOptions{}); err != nil {
			return err
		}
		if !ok(p) {
			return fmt.Errorf("it is %s: %+v", p.Status.Phase, p.Status.ContainerStatuses)
		}
		return nil
	})
	return p
}

func ready(p *v1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodReady && c.Status == v1.ConditionTrue })
}

func (d *days) ready(name string) *v1.Pod {
	d.Helper()
	return d.until(name, "Ready", ready)
}

// finished waits until a pod that does not restart has ended, and returns its log.
func (d *days) finished(p *v1.Pod) string {
	d.Helper()
	p.Spec.RestartPolicy = v1.RestartPolicyNever
	d.create(p)
	name := strings.TrimPrefix(p.Name, "vm-")
	d.until(name, "ended", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodSucceeded || p.Status.Phase == v1.PodFailed })
	return d.logs(name)
}

func (d *days) logs(name string) string {
	d.Helper()
	out, err := d.client.CoreV1().Pods(space).GetLogs("vm-"+name, &v1.PodLogOptions{}).DoRaw(d.Context())
	if err != nil {
		d.Fatal(err)
	}
	return string(out)
}

// remove deletes pods and waits until they are gone.
func (d *days) remove(names ...string) {
	d.Helper()
	for _, name := range names {
		if err := d.client.CoreV1().Pods(space).Delete(d.Context(), "vm-"+name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			d.Fatal(err)
		}
	}
	for _, name := range names {
		d.eventually(5*time.Minute, "pod "+name+" gone", func(ctx context.Context) error {
			_, err := d.client.CoreV1().Pods(space).Get(ctx, "vm-"+name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("still there (%v)", err)
		})
	}
}

// revive waits until a pod runs again after a boot. As with upstream's kubelet, one that an orderly shutdown has ended is Failed, and a controller would make another.
func (d *days) revive(p *v1.Pod) *v1.Pod {
	d.Helper()
	name := strings.TrimPrefix(p.Name, "vm-")
	found := d.until(name, "Ready after the boot, or ended by the shutdown", func(p *v1.Pod) bool { return ready(p) || p.Status.Phase == v1.PodFailed })
	if found.Status.Phase != v1.PodFailed {
		return found
	}
	d.Logf("pod %s: %s %s", name, found.Status.Phase, found.Status.Reason)
	d.remove(name)
	d.create(p)
	return d.ready(name)
}

// container returns what the machine's shell replaces by the id of a pod's container.
func container(p *v1.Pod) string {
	return "$(docker ps -qf label=io.kubernetes.pod.uid=" + string(p.UID) + " -f label=io.kubernetes.container.name=main)"
}

// inside returns a command of the machine's shell that runs one of the sample's in a pod's container.
func inside(p *v1.Pod, command string) string {
	return "docker exec " + container(p) + " /sample " + command
}

// containers are the machine's running containers, by id, with their names.
func (d *days) containers() string {
	d.Helper()
	lines := strings.Split(strings.TrimSpace(d.run("docker ps --no-trunc --format '{{.ID}} {{.Names}}'")), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// lives checks that the kubelet works and that the containers are those of before.
func (d *days) lives(before string) {
	d.Helper()
	d.finished(d.pod("lives", "shell", "-c", "write /file x"))
	d.remove("lives")
	if now := d.containers(); now != before {
		d.Errorf("containers were\n%s\nare\n%s", before, now)
	}
}

// approve approves the certificate that the machine's kubelet requests for its port, as an administrator does.
func (d *days) approve() {
	d.Helper()
	d.eventually(2*time.Minute, "the kubelet requests a serving certificate", func(ctx context.Context) error {
		all, err := d.client.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, request := range all.Items {
			if request.Spec.SignerName == certificatesv1.KubeletServingSignerName && request.Spec.Username == "system:node:"+d.vm.Name && len(request.Status.Certificate) == 0 {
				_, err := d.cluster.Kubectl(ctx, "certificate", "approve", request.Name)
				return err
			}
		}
		return errors.New("it has not")
	})
}
