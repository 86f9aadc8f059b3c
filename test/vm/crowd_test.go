package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// crowd: one pod wants 28,000 idle connections to a Service, all that its source ports allow. It gets half of what the node's table of connection tracking
// has for a Service, and another pod is served. The lab's hosts cannot show it, because their processes may open too few files.
func crowd(d *days) {
	const servers, wanted = 4, 28000
	const most = 131072 / 4 * 7 / 8 / 2 // for one client of a Service: docs/reference/limits.md
	var names []string
	for i := range servers {
		name := fmt.Sprintf("crowded-%d", i)
		names = append(names, name)
		p := d.pod(name, "serve", "8080")
		p.Labels["app"], p.Spec.NodeName = "vm-crowded", d.cluster.Nodes[i%len(d.cluster.Nodes)].Name
		d.create(p)
	}
	service, err := d.client.CoreV1().Services(space).Create(d.Context(), &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "vm-crowded"},
		Spec: v1.ServiceSpec{Selector: map[string]string{"app": "vm-crowded"}, Ports: []v1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}}}, metav1.CreateOptions{})
	d.must(err)
	d.Cleanup(func() {
		if err := d.client.CoreV1().Services(space).Delete(context.Background(), service.Name, metav1.DeleteOptions{}); err != nil {
			d.Error(err)
		}
	})
	for _, name := range names {
		d.ready(name)
	}
	table := d.run("cat /proc/sys/net/netfilter/nf_conntrack_max")
	if table != "131072\n" {
		d.Errorf("connection tracking has a table of %s, want the proxy's 131072", strings.TrimSpace(table))
	}
	d.create(d.pod("greedy", "hoard", service.Spec.ClusterIP+":80", fmt.Sprint(wanted)))
	d.ready("greedy")
	begin, last := time.Now(), ""
	var held int
	d.eventually(15*time.Minute, "the greedy pod has all that it gets", func(context.Context) error {
		lines := strings.Split(strings.TrimSpace(d.logs("greedy")), "\n")
		if last = lines[len(lines)-1]; !strings.HasPrefix(last, "hoarded ") {
			return errors.New(last)
		}
		return nil
	})
	d.Logf("of %d: %s, after %.0f s", wanted, last, time.Since(begin).Seconds())
	if _, err := fmt.Sscanf(last, "hoarded %d", &held); err != nil || held < most*9/10 || held > most {
		d.Errorf("%q, %v; want nearly all of %d", last, err, most)
	}
	said := d.finished(d.pod("beside", "watch", "http://"+service.Spec.ClusterIP+"/", "30s"))
	d.Logf("another pod meanwhile: %s", said)
	lines := strings.Split(strings.TrimSpace(said), "\n")
	var requests, lost int
	// An answer may take more than a second of an emulated processor. A client that is refused gets a reset.
	if _, err := fmt.Sscanf(lines[len(lines)-1], "%d requests, %d lost", &requests, &lost); err != nil || requests < 20 || lost*10 > requests || strings.Contains(said, "reset") || strings.Contains(said, "refused") {
		d.Errorf("another pod is not served: %d requests, %d lost, %v", requests, lost, err)
	}
	d.Logf("%s", d.run("cat /proc/sys/net/netfilter/nf_conntrack_count; ls /proc/$(systemctl show -P MainPID proxy)/fd | wc -l; grep VmRSS /proc/$(systemctl show -P MainPID proxy)/status"))
	if said = d.run("dmesg"); strings.Contains(said, "nf_conntrack: table full") {
		d.Error("the table of connection tracking was full")
	}
	d.remove(append(names, "greedy", "beside")...)
}

// upstream: tests of upstream's suite that need a machine like this one, see package conformance.
func upstream(d *days) {
	if os.Getenv("WINKUBE_SUITE") == "" {
		d.Skip("it takes longer than all else: only with WINKUBE_SUITE=1")
	}
	cmd := exec.CommandContext(d.Context(), "go", "run", "./test/conformance")
	cmd.Dir, cmd.Env = d.cluster.Root, append(os.Environ(), "VM=1")
	cmd.Stdout, cmd.Stderr = d.Output(), d.Output()
	if err := cmd.Run(); err != nil {
		d.Errorf("%v: see %s/_output/conformance", err, d.cluster.Root)
	}
	d.eventually(5*time.Minute, "the suite's pods are gone", func(ctx context.Context) error { // it does not wait for its namespaces
		all, err := d.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + d.vm.Name})
		if err != nil {
			return err
		}
		for i := range all.Items {
			if namespace := all.Items[i].Namespace; namespace != space && namespace != metav1.NamespaceSystem {
				return fmt.Errorf("pod %s/%s is there", namespace, all.Items[i].Name)
			}
		}
		return nil
	})
	d.nodeReady(time.Minute)
}
