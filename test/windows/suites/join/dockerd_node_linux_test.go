package join

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/windows/moby"
	"github.com/winkube/winkube/test/windows/rig"
)

// TestDockerdNode goes through the life of a node whose engine is moby's unmodified dockerd.exe, one version per Server: the guide's join, pods, ends of
// containers, kill -9 of our programs, restarts of the engine, a reboot, and the guide's leave. There are no processes and no packets, so pods have no
// probes and Services are not asked.
func TestDockerdNode(t *testing.T) {
	if os.Getenv("WINKUBE_DOCKERD") == "" {
		t.Skip("it takes more than 90 s: only with WINKUBE_DOCKERD=1, as make test-windows has it")
	}
	for _, build := range servers {
		release, ok := moby.Of(build)
		if !ok {
			continue // Server 2016: such an engine is not built (docs/reference/windows-checks.md)
		}
		onHost(t, build, func(t *testing.T, host *lab.Host) {
			d := newDockerNode(t, host, release)
			d.joins()
			d.runsPods()
			d.streams()
			d.exits()
			d.killed()
			d.engineRestarts("stopped", d.daemon.Stop)
			d.engineRestarts("killed", func() error { d.daemon.Kill(); return nil })
			d.reboots()
			d.deletes()
			d.leaves()
		})
	}
}

// dockerPods are pods of each restart policy. Two of them run until they are deleted, one completes, and one fails again and again.
const dockerPods = `---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 1
  volumes: [{name: cache, emptyDir: {}}]
  containers:
  - name: web
    image: ` + lab.SampleImage + `
    imagePullPolicy: IfNotPresent
    args: [serve, "8080"]
    env: [{name: COLOUR, value: red}]
    resources: {limits: {cpu: 500m, memory: 64Mi}}
    volumeMounts: [{name: cache, mountPath: /cache}]
---
apiVersion: v1
kind: Pod
metadata: {name: two}
spec:
  nodeName: NODE
  terminationGracePeriodSeconds: 1
  containers:
  - {name: first, image: ` + lab.SampleImage + `, imagePullPolicy: IfNotPresent, args: [serve, "1"]}
  - {name: second, image: ` + lab.SampleImage + `, imagePullPolicy: IfNotPresent, args: [serve, "2"]}
---
apiVersion: v1
kind: Pod
metadata: {name: once}
spec:
  nodeName: NODE
  restartPolicy: Never
  containers: [{name: once, image: ` + lab.SampleImage + `, imagePullPolicy: IfNotPresent, args: [echoargs, all, done]}]
---
apiVersion: v1
kind: Pod
metadata: {name: fails}
spec:
  nodeName: NODE
  restartPolicy: OnFailure
  containers: [{name: fails, image: ` + lab.SampleImage + `, imagePullPolicy: IfNotPresent, args: [exit, "3"]}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

// lasting are the pods of dockerPods that run until they are deleted, with the number of their containers.
var lasting = map[string]int{"web": 1, "two": 2}

// joins makes the host a node by the Windows guide.
func (d *dockerNode) joins() {
	d.Helper()
	d.forgetAtEnd()
	begin := time.Now()
	// The lab's API server wants a serving certificate of its CA for logs and exec.
	pki := func(name string) string { return rig.WindowsPath(d.host.PKI(name)) }
	said := <-d.beginJoin([]string{"--tls-cert-file=" + pki("kubelet-server.crt"), "--tls-private-key-file=" + pki("kubelet-server.key")}, nil)
	if !strings.Contains(said, "Node "+d.host.Name+": Ready") {
		d.Fatalf("kubelet.exe node join printed\n%s", said)
	}
	d.Logf("%s", said)
	d.did("dockerd.exe: node join to Node Ready", seconds(time.Since(begin)))
	d.podCIDR = d.rangeOfNode()
	node, err := client.CoreV1().Nodes().Get(d.Context(), d.host.Name, metav1.GetOptions{})
	if err != nil {
		d.Fatal(err)
	}
	d.did("dockerd.exe: engine", node.Status.NodeInfo.ContainerRuntimeVersion)
}

func (d *dockerNode) runsPods() {
	d.Helper()
	d.namespace("dockerd")
	d.apply(dockerPods)
	took := d.until(3*time.Minute, "pods", func(context.Context) error { return errors.Join(d.lastingRun(0), d.ended()) })
	d.did("dockerd.exe: pods running, completed, failed after", seconds(took))
	d.looks()
}

// lastingRun wants the lasting pods to run, each container restarted so often, and dockerd.exe, HCS and HNS to have what they need and no more.
func (d *dockerNode) lastingRun(restarts int32) error {
	pods, err := watched.Pods().Lister().Pods(d.space).List(labels.Everything())
	if err != nil {
		return err
	}
	all, err := d.inspects()
	if err != nil {
		return err
	}
	var running, want, others []string
	for _, one := range all {
		switch {
		case lasting[one.Config.Labels["io.kubernetes.pod.name"]] == 0:
			others = append(others, one.ID) // the sandbox of a pod that fails again and again
		case one.State.Running:
			running = append(running, one.ID)
		}
	}
	found := 0
	for _, pod := range pods {
		if lasting[pod.Name] == 0 {
			continue
		}
		found++
		for _, status := range pod.Status.ContainerStatuses {
			if status.State.Running == nil || status.RestartCount != restarts && !(pod.Name == "web" && status.RestartCount == restarts+d.exited) {
				return fmt.Errorf("container %s of pod %s: %+v", status.Name, pod.Name, status)
			}
		}
		ids, err := d.needs(pod, all)
		if err != nil {
			return err
		}
		want = append(want, ids...)
	}
	slices.Sort(running)
	slices.Sort(want)
	systems := slices.DeleteFunc(d.world.HCS.Systems(), func(id string) bool { return slices.Contains(others, id) })
	if found != len(lasting) || !slices.Equal(running, want) || !slices.Equal(systems, want) {
		return fmt.Errorf("%d pods; running in dockerd.exe: %v, systems in HCS: %v, wanted: %v", found, running, systems, want)
	}
	return nil
}

// ended wants the pods of dockerPods that end to have done so.
func (d *dockerNode) ended() error {
	once, err := watched.Pods().Lister().Pods(d.space).Get("once")
	if err != nil {
		return err
	}
	fails, err := watched.Pods().Lister().Pods(d.space).Get("fails")
	if err != nil {
		return err
	}
	if once.Status.Phase != v1.PodSucceeded {
		return fmt.Errorf("pod once is %s: %+v", once.Status.Phase, once.Status.ContainerStatuses)
	}
	for _, status := range fails.Status.ContainerStatuses {
		if last := status.LastTerminationState.Terminated; last != nil && last.ExitCode == 3 && status.RestartCount > 0 && status.State.Running == nil {
			return nil
		}
	}
	return fmt.Errorf("pod fails is %s: %+v", fails.Status.Phase, fails.Status.ContainerStatuses)
}

// streams reads logs, and has exec run processes with output and exit code.
func (d *dockerNode) streams() {
	d.Helper()
	for _, one := range []struct{ pod, want string }{{"web", "serving on :8080\n"}, {"once", "all done\n"}, {"fails", "ends\n"}} {
		d.served(time.Minute, "logs of "+one.pod, func(ctx context.Context) error {
			out, err := cluster.Kubectl(ctx, "logs", "-n", d.space, one.pod)
			if err == nil && out != one.want {
				err = fmt.Errorf("logs are %q, want %q", out, one.want)
			}
			return err
		})
	}
	d.did("dockerd.exe: logs", "ok")
	if out := d.inPod("web echoargs in the container"); out != "in the container\n" {
		d.Errorf("exec: %q", out)
	}
	out, err := cluster.Kubectl(d.Context(), "exec", "-n", d.space, "web", "--", "/sample", "exit", "4")
	if err == nil || !strings.Contains(out+err.Error(), "exit code 4") {
		d.Errorf("exec of a process that fails: %q, %v", out, err)
	}
	d.did("dockerd.exe: exec, exit code", "ok")
}

// exits ends the process of a container, which is restarted by its pod's policy.
func (d *dockerNode) exits() {
	d.Helper()
	pod, err := watched.Pods().Lister().Pods(d.space).Get("web")
	if err != nil {
		d.Fatal(err)
	}
	if id := strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "docker://"); !d.world.HCS.Exit(id, 5) {
		d.Fatalf("no process runs in %s", id)
	}
	d.exited = 1
	took := d.until(time.Minute, "the container again", func(context.Context) error {
		pod, err := watched.Pods().Lister().Pods(d.space).Get("web")
		if err != nil {
			return err
		}
		status := pod.Status.ContainerStatuses[0]
		if last := status.LastTerminationState.Terminated; status.RestartCount != 1 || last == nil || last.ExitCode != 5 {
			return fmt.Errorf("%+v", status)
		}
		return d.lastingRun(0)
	})
	d.did("dockerd.exe: container ended with 5, another runs after", seconds(took))
}

// killed ends both of our programs as a crash does. Containers stay.
func (d *dockerNode) killed() {
	d.Helper()
	before, err := d.inspects()
	if err != nil {
		d.Fatal(err)
	}
	for _, one := range services {
		if _, err := d.Prefix.Run(d.Context(), "taskkill.exe", "/f", "/im", one.exe); err != nil {
			d.Fatal(err)
		}
	}
	begin := time.Now()
	for _, one := range services {
		if said := d.does(one.exe, one.name+": runs", "start"); strings.Contains(said, "runs already") { // Wine's service manager does not notice by itself
			if _, err := d.Prefix.Run(d.Context(), "sc.exe", "start", one.name); err != nil {
				d.Fatal(err)
			}
		}
	}
	d.until(3*time.Minute, "Node Ready after kill -9", func(context.Context) error { return errors.Join(d.ready(begin), d.lastingRun(0)) })
	d.did("dockerd.exe: kill -9 of both: Node Ready again", seconds(time.Since(begin)))
	after, err := d.inspects()
	if err != nil {
		d.Fatal(err)
	}
	for name, one := range before {
		if one.State.Running && after[name].ContainerJSONBase == nil || one.State.Running && after[name].ID != one.ID {
			d.Errorf("container %s was %s, is %v", name, one.ID, after[name].ContainerJSONBase)
		}
	}
}

// engineRestarts ends dockerd.exe and starts it again. Its containers end with it, or at the latest when it starts: pods get others. It adopts the
// networks.
func (d *dockerNode) engineRestarts(how string, end func() error) {
	d.Helper()
	before, err := d.inspects()
	if err != nil {
		d.Fatal(err)
	}
	if err := end(); err != nil {
		d.Fatal(err)
	}
	d.startDaemon()
	begin := time.Now()
	d.again("dockerd.exe "+how, begin, before)
}

// reboots ends everything on the host, as a loss of power does. dockerd.exe starts before the services.
func (d *dockerNode) reboots() {
	d.Helper()
	before, err := d.inspects()
	if err != nil {
		d.Fatal(err)
	}
	d.daemon.Kill()
	d.world.Reboot()
	if err := d.Reboot(d.Context()); err != nil {
		d.Fatal(err)
	}
	d.startDaemon()
	for _, one := range services {
		d.does(one.exe, one.name+": stopped", "stop")
	}
	d.named() // Wine has written the machine's name at its start, and started services with it
	begin := time.Now()
	for _, one := range services {
		d.does(one.exe, one.name+": runs", "start")
	}
	d.again("reboot", begin, before)
}

// again waits until the lasting pods run with other containers, on the same network.
func (d *dockerNode) again(what string, begin time.Time, before map[string]container.InspectResponse) {
	d.Helper()
	d.engineStarts++
	d.until(4*time.Minute, "pods after: "+what, func(context.Context) error { return errors.Join(d.ready(begin), d.lastingRun(d.engineStarts)) })
	d.did(what+": pods run again", seconds(time.Since(begin)))
	after, err := d.inspects()
	if err != nil {
		d.Fatal(err)
	}
	for name, one := range before {
		if now := after[name]; now.ContainerJSONBase != nil && now.ID == one.ID && now.State.Running {
			d.Errorf("%s: container %s still runs", what, name)
		}
	}
	d.oneNetwork(what)
}

// oneNetwork wants one network of pods in HNS and in dockerd.exe, which the kubelet has not made a second time.
func (d *dockerNode) oneNetwork(when string) {
	d.Helper()
	found := 0
	for line := range strings.Lines(d.world.HNS.String()) {
		if strings.HasPrefix(line, "network L2Bridge ") {
			found++
		}
	}
	var networks []struct{ ID, Name, Driver string }
	if err := d.get("/networks", &networks); err != nil {
		d.Fatal(err)
	}
	networks = slices.DeleteFunc(networks, func(n struct{ ID, Name, Driver string }) bool { return n.Driver != "l2bridge" })
	made := 0
	for _, call := range d.world.Log.Calls("HNSCall", "HcnCreateNetwork") {
		if call.Result == 0 && strings.Contains(strings.Join(call.Args, " "), podNetwork) && (call.Function == "HcnCreateNetwork" || call.Args[0] == http.MethodPost && call.Args[1] == "/networks/") {
			made++
		}
	}
	if found != 1 || len(networks) > 1 || made != 1 {
		d.Errorf("%s: %d networks of pods in HNS, which were made %d times, in dockerd.exe %+v", when, found, made, networks)
	}
}

// deletes deletes the pods. Nothing of them stays in dockerd.exe, HNS and HCS.
func (d *dockerNode) deletes() {
	d.Helper()
	if _, err := cluster.Kubectl(d.Context(), "delete", "pods", "--all", "-n", d.space, "--wait=false"); err != nil {
		d.Fatal(err)
	}
	took := d.until(3*time.Minute, "neither container nor endpoint nor system", func(context.Context) error {
		all, err := d.inspects()
		if err != nil {
			return err
		}
		if systems, endpoints := d.world.HCS.Systems(), d.podEndpoints(); len(all) > 0 || len(systems) > 0 || len(endpoints) > 0 {
			return fmt.Errorf("containers %v, systems %v, endpoints %v", slices.Collect(maps.Keys(all)), systems, endpoints)
		}
		pods, err := watched.Pods().Lister().Pods(d.space).List(labels.Everything())
		if err == nil && len(pods) > 0 {
			err = fmt.Errorf("%d pods are left", len(pods))
		}
		return err
	})
	d.did("dockerd.exe: pods deleted, nothing of them after", seconds(took))
}

// leaves has the host leave by the guide.
func (d *dockerNode) leaves() {
	d.Helper()
	begin := time.Now()
	left, err := d.Finish(d.agentAt(d.guidedProgram(), d.guided(`.\kubelet.exe node leave`)))
	want := "done; the Node object stays until: kubectl delete node " + d.host.Name
	if err != nil || !strings.Contains(left.Stdout, want) {
		d.Fatalf("kubelet.exe node leave: %v, want %q:\n%s", err, want, left)
	}
	d.did("dockerd.exe: node leave", seconds(time.Since(begin)))
	if _, err := os.Stat(d.Path(`C:\k`)); !errors.Is(err, fs.ErrNotExist) {
		d.Errorf("C:\\k: %v", err)
	}
	var networks []struct{ Name string }
	if err := d.get("/networks", &networks); err != nil || slices.ContainsFunc(networks, func(n struct{ Name string }) bool { return n.Name == podNetwork }) {
		d.Errorf("networks of dockerd.exe: %v, %v", networks, err)
	}
	d.nothingLeft()
	d.did("dockerd.exe: nothing left", "ok")
}
