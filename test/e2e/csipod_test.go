package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/output"
)

// TestCSIPod: a CSI driver runs as drivers' manifests have it: a privileged container of a DaemonSet mounts below /var/lib/kubelet with mount
// propagation, and a registrar runs beside it. The pods that use it go on while the kubelet is killed, while the driver is killed, and while its pod is
// replaced, and they end afterwards.
func TestCSIPod(t *testing.T) {
	if cluster.Runtime != lab.RuncPrivileged {
		t.Skip("it needs privileged containers and a kubelet in /var/lib/kubelet: run it on a cluster with RUNTIME=" + lab.RuncPrivileged)
	}
	d := newCSIPod(t)
	first, second := d.claim("first"), d.claim("second")
	d.uses("a", claimed("first"))
	d.uses("b", claimed("first"))
	d.ready("a")
	d.ready("b")
	d.wants(first, 1, 2, 0, 0)

	d.allReady(2 * time.Minute) // another test may have left them starting
	before := d.used()
	d.killKubelet()
	d.must(d.node.Process("kubelet").Start(context.Background()))
	d.nodeReady(d.node.Name, true, 60*time.Second)
	d.serves()
	d.keeps(before, "the kubelet was killed")
	d.wants(first, 1, 2, 0, 0)

	d.killDriver()
	d.serves()
	d.uses("c", claimed("second"))
	d.ready("c")
	d.keeps(before, "the driver was killed")

	before = d.used()
	took := d.replaceDriver()
	d.serves()
	d.keeps(before, "the driver's pod was replaced")
	t.Logf("the driver's pod was replaced in %.1f s", took.Seconds())
	d.ends("a")
	d.wants(first, 1, 2, 1, 0)
	d.ends("b", "c")
	d.wants(first, 1, 2, 2, 1)
	d.wants(second, 1, 1, 1, 1)
	endedWell(d.csiDriver, first, 2)
}

// csiPod is the driver of test/csidriver in a DaemonSet's pod on the first node. Its own space outlives that of the pods that use it.
type csiPod struct {
	*csiDriver
	own *space
}

// newCSIPod starts the driver's pod and waits until it serves.
func newCSIPod(t *testing.T) *csiPod {
	t.Helper()
	node := cluster.Nodes[0]
	t.Cleanup(func() { // at the end of all: the driver is gone, and has removed its sockets
		if err := os.RemoveAll(node.CSIData()); err != nil {
			t.Error(err)
		}
		if err := client.StorageV1().CSIDrivers().Delete(context.Background(), lab.CSIDriverName, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	own := newSpace(t)
	d := &csiPod{&csiDriver{newSpace(t), node, node.CSIData()}, own}
	d.must(createCSIDriver(t.Context()))
	d.must(cluster.LoadCSIDriver(t.Context()))
	d.must(os.MkdirAll(d.data, 0o750))
	if _, err := client.AppsV1().DaemonSets(own.name).Create(t.Context(), d.daemonSet(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	d.serves()
	return d
}

// daemonSet has the volumes, the privilege and the mount propagation of the drivers' usual manifests.
func (d *csiPod) daemonSet() *appsv1.DaemonSet {
	const kubelet, driver, registrar = "/var/lib/kubelet", "driver", "registrar"
	plugin := filepath.Join(kubelet, "plugins", lab.CSIDriverName)
	host := func(name, path string, kind v1.HostPathType) v1.Volume {
		return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path, Type: &kind}}}
	}
	labels := map[string]string{"app": driver}
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: driver}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: v1.PodSpec{
			NodeSelector: map[string]string{v1.LabelHostname: d.node.Name}, TerminationGracePeriodSeconds: new(int64(5)),
			Volumes: []v1.Volume{
				host("plugin", plugin, v1.HostPathDirectoryOrCreate), host("registry", kubelet+"/plugins_registry", v1.HostPathDirectory),
				host("kubelet", kubelet, v1.HostPathDirectory), host("data", d.data, v1.HostPathDirectory),
			},
			Containers: []v1.Container{
				{
					Name: driver, Image: lab.CSIDriverImage, SecurityContext: &v1.SecurityContext{Privileged: new(true)},
					Args: []string{"--name=" + lab.CSIDriverName, "--node-id=" + d.node.Name, "--data=/data", "--endpoint=/csi/csi.sock"},
					VolumeMounts: []v1.VolumeMount{
						{Name: "plugin", MountPath: "/csi"}, {Name: "data", MountPath: "/data"},
						{Name: "kubelet", MountPath: kubelet, MountPropagation: new(v1.MountPropagationBidirectional)},
					},
				},
				{
					Name: registrar, Image: lab.CSIPodImage,
					Args:         []string{"-csi-address=/csi/csi.sock", "-kubelet-registration-path=" + plugin + "/csi.sock", "-plugin-registration-path=/registration"},
					VolumeMounts: []v1.VolumeMount{{Name: "plugin", MountPath: "/csi"}, {Name: "registry", MountPath: "/registration"}},
				},
			},
		}},
	}}
}

// serves waits until the driver answers and the node's CSINode lists it. That it is registered shows only in volumes: its registrar has no log of calls.
func (d *csiPod) serves() {
	d.Helper()
	d.eventually(60*time.Second, "CSI driver in a pod of "+d.node.Name+" serves", d.answers)
}

// used lists the containers, with their restarts, of the pods that use the driver.
func (d *csiPod) used() string {
	d.Helper()
	pods, err := client.CoreV1().Pods(d.name).List(context.Background(), metav1.ListOptions{})
	d.must(err)
	var out strings.Builder
	for _, pod := range pods.Items {
		for _, status := range pod.Status.ContainerStatuses {
			fmt.Fprintln(&out, pod.Name, pod.UID, status.ContainerID, status.RestartCount)
		}
	}
	return out.String()
}

// keeps compares the containers with those before, and has each pod read what it wrote into its volume.
func (d *csiPod) keeps(before, since string) {
	d.Helper()
	if diff := difference(before, d.used()); strings.Contains(diff, "- ") {
		d.Errorf("since %s containers or restart counts changed:\n%s", since, diff)
	}
	for line := range strings.Lines(before) {
		name, _, _ := strings.Cut(line, " ")
		d.eventually(30*time.Second, "since "+since+" pod "+name+" reads its volume", func(ctx context.Context) error { // a kubelet that just started may not know it yet
			out, err := cluster.Kubectl(ctx, "exec", "-n", d.name, name, "--", "/sample", "cat", "/v/"+name)
			if err == nil && strings.TrimSpace(out) != "x" {
				err = fmt.Errorf("it reads %q, want x", out)
			}
			return err
		})
	}
}

// pods returns the driver's pods that are not being deleted.
func (d *csiPod) pods(ctx context.Context) (pods []v1.Pod, err error) {
	list, err := client.CoreV1().Pods(d.own.name).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, pod := range list.Items {
		if pod.DeletionTimestamp == nil {
			pods = append(pods, pod)
		}
	}
	return pods, nil
}

// killDriver kills the driver's process and waits until the kubelet has started it again.
func (d *csiPod) killDriver() {
	d.Helper()
	if said, err := output.Of(d.node.Command(d.Context(), "pkill", "-KILL", "-f", "^/csidriver --name="+lab.CSIDriverName)); err != nil {
		d.Fatalf("cannot kill the driver: %v %s", err, said)
	}
	d.eventually(60*time.Second, "the driver's container has restarted", func(ctx context.Context) error {
		pods, err := d.pods(ctx)
		if err != nil || len(pods) != 1 {
			return fmt.Errorf("%d pods (%w)", len(pods), err)
		}
		for _, status := range pods[0].Status.ContainerStatuses {
			if status.Name == "driver" && status.RestartCount == 1 && status.Ready {
				return nil
			}
		}
		return fmt.Errorf("its containers are %v", pods[0].Status.ContainerStatuses)
	})
}

// replaceDriver changes the DaemonSet's template, as an upgrade does, and waits until another pod is Ready.
func (d *csiPod) replaceDriver() time.Duration {
	d.Helper()
	old, err := d.pods(d.Context())
	if err != nil || len(old) != 1 {
		d.Fatalf("%d pods of the driver (%v), want 1", len(old), err)
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{"annotations": map[string]string{"winkube.test/version": "2"}}}}})
	d.must(err)
	_, err = client.AppsV1().DaemonSets(d.own.name).Patch(d.Context(), "driver", types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	d.must(err)
	return d.eventually(60*time.Second, "another pod of the driver is Ready", func(ctx context.Context) error {
		pods, err := d.pods(ctx)
		if err != nil {
			return err
		}
		for i := range pods {
			if pods[i].UID != old[0].UID {
				return isReady(&pods[i])
			}
		}
		return errors.New("there is none")
	})
}
