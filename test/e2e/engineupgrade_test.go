package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/registry"
)

// engineUpgrade is a node whose engine is upgraded under pods of every role, with traffic from another node.
type engineUpgrade struct {
	*traffic
	run         *run
	images      *imageStage
	node, other *lab.Host
	steady      []*v1.Pod
	web         *v1.Pod // in front of it a hostPort
	private     string  // an image that needs a secret
	unused      string  // an image that no container uses
}

const upgradePort = "18095"

// TestEngineUpgrade upgrades the engine of a node in place, as packages do: Docker 20.10, 28, 29, each with its
// containerd and runc, with live-restore. It leaves the second node with Docker 29, so the cluster is removed afterwards.
func TestEngineUpgrade(t *testing.T) {
	if os.Getenv("WINKUBE_ENGINE_UPGRADE") == "" {
		t.Skip("takes ten minutes and removes the cluster afterwards: WINKUBE_ENGINE_UPGRADE=1")
	}
	if cluster.Engine != "" || cluster.EngineAPI != "" || cluster.NetworkMode == "cni" {
		t.Skip("upgrades Debian's engine, without plugins")
	}
	for _, release := range []string{"28", "29"} {
		if err := cluster.BuildEngine(t.Context(), release); err != nil {
			t.Fatal(err)
		}
	}
	spent = true
	u := &engineUpgrade{other: cluster.Nodes[0], node: cluster.Nodes[1]}
	// From a directory of programs that the upgrades replace, so that shims find the new runc as they would in /usr/bin.
	if err := u.node.InstallEngine(t.Context(), lab.Debian); err != nil {
		t.Fatal(err)
	}
	// Docker's own builds of 29 refuse what is older; this module's default is 1.40.
	u.node.ExtraEnv["dockerd"] = []string{"DOCKER_MIN_API_VERSION=1.44"}
	u.traffic = startTraffic(t)
	u.stage()
	u.to("28", "28.5.2")
	u.collects()
	u.to("29", "29.0.0-beta.24")
	u.collected()
	if !cluster.KubeletInterfaces() { // otherwise the engine has no network of pods
		u.drained()
	}
	u.storeSwitched()
}

// stage starts the pods.
func (u *engineUpgrade) stage() {
	u.Helper()
	u.run = &run{cast: newCast(u.space, u.node), w: &witness{}, done: map[string]int{}}
	u.steady = u.run.steady()
	r := newRegistry(u.T, u.node, 5994, registry.Token)
	u.images = &imageStage{space: u.space, node: u.node, tokens: r}
	u.private, _ = r.add("private/alice/app:1")
	u.unused, _ = r.add("public/unused:1")
	u.images.addSecret("alice", v1.SecretTypeDockerConfigJson, r.addr+"/private/alice", "alice", registry.Password("alice"))
	u.images.start("private", u.private, v1.PullIfNotPresent, "alice")
	u.images.start("passing", u.unused, v1.PullIfNotPresent)
	u.ready("private")
	u.ready("passing")
	u.must(client.CoreV1().Pods(u.name).Delete(u.Context(), "passing", metav1.DeleteOptions{}))
	web := u.pod("front", u.node, "serve", "8080")
	web.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 8080, HostPort: 18095}}
	u.create(web)
	u.web = u.ready("front")
	for _, version := range []string{"28", "29"} {
		leaving := u.pod("leaves-"+version, u.node, "sleep")
		u.create(leaving)
		fails := u.pod("fails-"+version, u.node, "shell", "-c", "write /v/alive x; sleep")
		fails.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
		fails.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
		fails.Spec.Containers[0].LivenessProbe = &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: sample("cat", "/v/alive")}, PeriodSeconds: 1, TimeoutSeconds: 10, FailureThreshold: 2, InitialDelaySeconds: 5}
		u.create(fails)
		u.ready("leaves-" + version)
		u.ready("fails-" + version)
	}
	u.eventually(30*time.Second, "the passing pod is gone", func(ctx context.Context) error { return u.gone(ctx, "passing") })
}

// to upgrades the engine and checks what must hold.
func (u *engineUpgrade) to(release, version string) {
	u.Helper()
	before, ids := u.state(), u.living()
	var down time.Duration
	longest, seen := u.during(40*time.Second, func() {
		begin := time.Now()
		u.must(u.node.InstallEngine(u.Context(), release))
		down = time.Since(begin)
	})
	u.Logf("engine %s installed, away for %.1f s; longest silence of the service %s\n%s", release, down.Seconds(), longest, seen)
	if longest > 5*time.Second {
		u.Errorf("the service was silent for %s while engine %s was installed", longest, release)
	}
	took := u.eventually(60*time.Second, "the Node shows the engine", func(ctx context.Context) error {
		node, err := client.CoreV1().Nodes().Get(ctx, u.node.Name, metav1.GetOptions{})
		if err == nil && node.Status.NodeInfo.ContainerRuntimeVersion != "docker://"+version {
			err = fmt.Errorf("it shows %s", node.Status.NodeInfo.ContainerRuntimeVersion)
		}
		return err
	})
	u.nodeReady(u.node.Name, true, 30*time.Second)
	u.Logf("the Node shows %s after another %.1f s", version, took.Seconds())
	for _, id := range ids {
		if !slices.Contains(u.running(u.node), id) {
			u.Errorf("container %.12s does not run any more", id)
		}
	}
	if diff := difference(before, u.state()); diff != "" {
		u.Errorf("after engine %s the pods' state differs:\n%s", release, diff)
	}
	u.Logf("between the pods: %s", u.unbroken())
	u.run.unchanged(u.steady)
	u.works(release)
}

// state describes the containers and images of the pods whose containers do not end by themselves.
func (u *engineUpgrade) state() string {
	u.Helper()
	pods, err := client.CoreV1().Pods("").List(context.Background(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + u.node.Name})
	u.must(err)
	var out strings.Builder
	for _, pod := range pods.Items {
		for _, status := range pod.Status.ContainerStatuses {
			if !endsByItself(pod.Name, status.Name) {
				fmt.Fprintln(&out, pod.Namespace, pod.Name, pod.UID, pod.Status.PodIP, status.Name, status.ContainerID, status.ImageID, status.RestartCount)
			}
		}
	}
	return out.String()
}

// living lists the running containers, with sandboxes, except those that end by themselves.
func (u *engineUpgrade) living() (ids []string) {
	u.Helper()
	list, err := u.node.Engine().Containers(u.Context())
	u.must(err)
	for _, c := range list {
		if c.State == "running" && !endsByItself(c.Labels["io.kubernetes.pod.name"], c.Labels["io.kubernetes.container.name"]) {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// works checks old and new pods under the engine that was just installed.
func (u *engineUpgrade) works(release string) {
	u.Helper()
	ctx := u.Context()
	kubectl := func(args ...string) string {
		u.Helper()
		out, err := cluster.Kubectl(ctx, append([]string{"-n", u.name}, args...)...)
		if err != nil {
			u.Errorf("kubectl %v: %v", args, err)
		}
		return strings.TrimSpace(out)
	}
	if out := kubectl("exec", "front", "--", "/sample", "hostname"); out != "front" {
		u.Errorf("a command in a pod of the former engine printed %q", out)
	}
	if out := kubectl("logs", "stream"); strings.Count(out, "\n") < 2 {
		u.Errorf("the log of a pod of the former engine:\n%s", out)
	}
	for name, url := range map[string]string{"pod": "http://" + u.web.Status.PodIP + ":8080/hostname", "hostPort": "http://" + u.node.Addr.String() + ":" + upgradePort + "/hostname"} {
		u.eventually(10*time.Second, "the "+name+" of the former engine answers another node", func(ctx context.Context) error {
			_, err := ask(ctx, u.other, url)
			return err
		})
	}
	// A failing probe ends a container of the former engine; the next one starts in the former sandbox.
	alive := u.node.Dir("kubelet", "pods", string(u.get("fails-"+release).UID), "volumes", "kubernetes.io~empty-dir", "v", "alive")
	u.must(os.Remove(alive))
	u.eventually(60*time.Second, "a failing probe restarts a container of the former engine", func(ctx context.Context) error {
		pod, err := client.CoreV1().Pods(u.name).Get(ctx, "fails-"+release, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if status := pod.Status.ContainerStatuses[0]; status.RestartCount != 1 {
			return fmt.Errorf("it was restarted %d times: %+v", status.RestartCount, status.State)
		}
		return isReady(pod)
	})
	u.onlyShim(u.get("fails-"+release), u.node, 2) // that of the former sandbox, and of the former containerd
	u.must(client.CoreV1().Pods(u.name).Delete(ctx, "leaves-"+release, metav1.DeleteOptions{}))
	u.eventually(30*time.Second, "a pod of the former engine ends", func(ctx context.Context) error { return u.gone(ctx, "leaves-"+release) })

	name := "new-" + release
	fresh := u.pod(name, u.node, "serve", "8080")
	begin := time.Now()
	u.create(fresh)
	made := u.ready(name)
	u.Logf("a new pod is Ready after %.1f s", time.Since(begin).Seconds())
	// Without a probe the pod is Ready when its program has started, which may not listen yet.
	u.eventually(10*time.Second, "the new pod answers another node", func(ctx context.Context) error {
		_, err := ask(ctx, u.other, "http://"+made.Status.PodIP+":8080/")
		return err
	})
	for _, to := range []*v1.Pod{u.web, u.get("web-1")} {
		if _, err := inPod(ctx, u.node, u.sandboxOf(u.node, made), "http://"+to.Status.PodIP+":8080/"); err != nil {
			u.Errorf("the new pod does not reach %s: %v", to.Name, err)
		}
	}
	// Pull records: only pods with the secret may use the image that was pulled with it.
	u.images.start("friend-"+release, u.private, v1.PullNever, "alice")
	u.images.start("stranger-"+release, u.private, v1.PullNever)
	u.ready("friend-" + release)
	u.images.waits("stranger-"+release, "ErrImageNeverPull")
	u.must(client.CoreV1().Pods(u.name).Delete(ctx, "stranger-"+release, metav1.DeleteOptions{}))
	u.eventually(30*time.Second, "the stranger is gone", func(ctx context.Context) error { return u.gone(ctx, "stranger-"+release) })
}

// collects has the kubelet remove unused images, five minutes from now.
func (u *engineUpgrade) collects() {
	u.Helper()
	u.node.ExtraArgs["kubelet"] = []string{"--image-gc-high-threshold=1", "--image-gc-low-threshold=0", "--minimum-image-ttl-duration=0s"}
	u.must(u.node.Process("kubelet").Restart(u.Context()))
	u.nodeReady(u.node.Name, true, 60*time.Second)
}

// collected checks that image garbage collection knows which images the containers of former engines use.
func (u *engineUpgrade) collected() {
	u.Helper()
	u.eventually(6*time.Minute, "the unused image is removed", func(ctx context.Context) error {
		images, err := u.node.Engine().Images(ctx)
		if err == nil && slices.Contains(images, u.unused) {
			err = errors.New("it is there")
		}
		return err
	})
	images, err := u.node.Engine().Images(u.Context())
	u.must(err)
	for _, used := range []string{lab.PauseImage, lab.SampleImage, u.private} {
		if !slices.Contains(images, used) {
			u.Errorf("image %s of running containers was removed; left are %q", used, images)
		}
	}
	u.run.unchanged(u.steady)
}

// emptied removes all containers while do runs, as a reboot or a drain would: the pods start again with new ones.
func (u *engineUpgrade) emptied(do func()) {
	u.Helper()
	kubelet, engine := u.node.Process("kubelet"), u.node.Engine()
	u.must(kubelet.Stop(u.Context()))
	list, err := engine.Containers(u.Context())
	u.must(err)
	for _, c := range list {
		u.must(engine.Remove(u.Context(), c.ID))
	}
	do()
	u.must(kubelet.Start(u.Context()))
	u.nodeReady(u.node.Name, true, 60*time.Second)
	u.eventually(120*time.Second, "the pods run again", func(context.Context) error {
		for _, name := range []string{"front", "private", "new-29"} {
			pod := u.get(name)
			if err := isReady(pod); err != nil {
				return err
			}
			if id := strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "docker://"); !slices.Contains(u.running(u.node), id) {
				return fmt.Errorf("pod %s shows container %.12s, which does not run", name, id)
			}
		}
		return nil
	})
	u.eventually(20*time.Second, "a pod answers another node", func(ctx context.Context) error {
		_, err := ask(ctx, u.other, "http://"+u.get("front").Status.PodIP+":8080/")
		return err
	})
}

// drained checks that the network of pods becomes as on a new node once it has no pods of the former engine.
func (u *engineUpgrade) drained() {
	u.Helper()
	const option = "com.docker.network.bridge.gateway_mode_ipv4"
	network := func() (mode string, chain bool) {
		u.Helper()
		options, err := u.node.Engine().NetworkOptions(u.Context(), "winkube")
		u.must(err)
		rules, err := u.node.Exec(u.Context(), "iptables-save", "-t", "raw")
		u.must(err)
		return options[option], strings.Contains(rules, "WINKUBE-DIRECT")
	}
	if mode, chain := network(); mode != "" || !chain {
		u.Errorf("under pods of the former engines the network has gateway_mode %q, and a chain in the table raw: %t; want none, and one", mode, chain)
	}
	u.emptied(func() {})
	if mode, chain := network(); mode != "nat-unprotected" || chain {
		u.Errorf("without pods of the former engines the network has gateway_mode %q, and a chain in the table raw: %t", mode, chain)
	}
}

// storeSwitched has the upgraded engine keep its images in containerd's store, as a new one does.
func (u *engineUpgrade) storeSwitched() {
	u.Helper()
	engine := u.node.Engine()
	driver := func(want string) {
		u.Helper()
		if got, err := engine.StorageDriver(u.Context()); err != nil || got != want {
			u.Errorf("the engine keeps its images in %s, %v; want %s", got, err, want)
		}
	}
	driver("overlay2")
	u.emptied(func() {
		u.must(u.node.ConfigureEngine(u.Context(), map[string]any{"features": map[string]bool{"containerd-snapshotter": true}}))
		u.restartEngine(u.node)
		if images, err := engine.Images(u.Context()); err != nil || len(images) > 0 {
			u.Errorf("containerd's store begins with %q, %v", images, err)
		}
		u.must(u.node.LoadImages(u.Context()))
	})
	driver("overlayfs")
}
