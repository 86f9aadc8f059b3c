package e2e

import (
	"context"
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
	"k8s.io/utils/ptr"

	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/page"
)

// mover changes the third host from another kubelet on Docker to ours, and back, by the commands of a guide.
type mover struct {
	*space
	host    *lab.Host
	guide   string // page
	url     string // of the Deployment's Service
	initial string // hostState before the first join
	// restarts is how often the Deployment's containers have been restarted.
	restarts int32
}

// newMover has a host without any kubelet, and a Deployment of two pods that run only there.
func newMover(t *testing.T, guide string) *mover {
	t.Helper()
	m := &mover{space: newSpace(t), host: cluster.Joiner, guide: guide}
	m.must(cluster.UpJoiner(t.Context()))
	m.bareJoiner()
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := m.host.Shell(context.Background(), "tail -n 40 /var/log/kubelet.log /var/log/cri-docker.log; docker ps -a")
			t.Log(log)
		}
		_, err := m.host.Shell(context.Background(), "rm -rf /etc/kubernetes/*; ip link delete cni0 2>/dev/null; docker -H unix://"+m.host.EngineSocket()+" ps -aq | xargs -r docker -H unix://"+m.host.EngineSocket()+" rm -f")
		m.must(errors.Join(cluster.RemoveUpstream(context.Background()), err))
	})
	_, err := cluster.Kubectl(t.Context(), "apply", "-f", filepath.Join(cluster.Root, "build/kubernetes/node-join.yaml"))
	m.must(err)
	m.initial = m.hostState(m.host)
	web := m.pod("web", m.host, "serve", "8080").Spec
	labels := map[string]string{"app": "web"}
	_, err = client.AppsV1().Deployments(m.name).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{Replicas: ptr.To(int32(2)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: web}},
	}, metav1.CreateOptions{})
	m.must(err)
	m.url = "http://" + m.service("web", 8080) + "/"
	return m
}

// run runs a command on the host as an administrator types it, and prints it with what it prints.
func (m *mover) run(line string) (string, error) {
	m.Helper()
	begin := time.Now()
	said, err := m.host.Shell(m.Context(), fmt.Sprintf("export KUBECONFIG=%s DOCKER_HOST=unix://%s; %s", cluster.Control.PKI("admin.kubeconfig"), m.host.EngineSocket(), line))
	m.Logf("[%s, %.1f s] $ %s\n%s", begin.Format(time.TimeOnly), time.Since(begin).Seconds(), line, said)
	return said, err
}

func (m *mover) mustRun(line string) string {
	m.Helper()
	said, err := m.run(line)
	m.must(err)
	return said
}

// documented runs the command of the guide that begins with these words, with more flags of the simulated host.
func (m *mover) documented(begin string, flags ...string) string {
	m.Helper()
	text, err := os.ReadFile(filepath.Join(cluster.Root, m.guide))
	m.must(err)
	for _, c := range page.Commands(string(text), strings.Fields(begin)[0]) {
		if strings.HasPrefix(c.Text, begin) {
			return m.mustRun(strings.Join(append([]string{strings.ReplaceAll(c.Text, "NODE", m.host.Name)}, flags...), " "))
		}
	}
	m.Fatalf("%s has no command %q", m.guide, begin)
	return ""
}

// served waits until both pods of the Deployment run on the host by the kubelet of that version, as often restarted as expected, and another node reaches them by their
// Service.
func (m *mover) served(version string) {
	m.Helper()
	m.must(cluster.NetworkOfJoiner(m.Context()))
	m.nodeReady(m.host.Name, true, 2*time.Minute)
	node, err := client.CoreV1().Nodes().Get(m.Context(), m.host.Name, metav1.GetOptions{})
	m.must(err)
	if node.Status.NodeInfo.KubeletVersion != version || !strings.HasPrefix(node.Status.NodeInfo.ContainerRuntimeVersion, "docker://") {
		m.Errorf("node info %+v, want kubelet %s and docker://", node.Status.NodeInfo, version)
	}
	took := m.eventually(3*time.Minute, "both pods run", func(ctx context.Context) error {
		list, err := client.CoreV1().Pods(m.name).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil {
			return err
		}
		running := 0
		for i := range list.Items {
			if p := &list.Items[i]; isReady(p) == nil && p.DeletionTimestamp == nil && p.Status.ContainerStatuses[0].RestartCount == m.restarts {
				running++
			}
		}
		if running != 2 || len(list.Items) != 2 {
			return fmt.Errorf("%d of %d run", running, len(list.Items))
		}
		return nil
	})
	m.eventually(time.Minute, "the Service from another node", func(ctx context.Context) error {
		_, err := ask(ctx, cluster.Nodes[0], m.url)
		return err
	})
	m.Logf("kubelet %s, %s: both pods run after %.1f s, and are served", version, node.Status.NodeInfo.ContainerRuntimeVersion, took.Seconds())
	m.mustRun("docker ps -a --format '{{.Names}}' | sort")
}

// gone checks that Docker has no container of a pod, and that no process is left in a pod's cgroup.
func (m *mover) gone() {
	m.Helper()
	if said := m.documented("docker ps -a --filter label=io.kubernetes.pod.uid"); strings.Count(said, "\n") != 1 {
		m.Errorf("containers are left:\n%s", said)
	}
	procs, _ := filepath.Glob("/sys/fs/cgroup/*/" + m.host.Namespace() + "/kubepods/*/pod*/cgroup.procs")
	for _, path := range procs {
		if text, err := os.ReadFile(path); err == nil && len(text) > 0 {
			m.Errorf("processes are left: %s: %s", path, text)
		}
	}
	m.Logf("empty cgroups of pods in all hierarchies: %d", len(procs))
}

// rebooted does what a restart of the host does to mounts and to the network of its plugins. Then the host is as before everything, but for the links to logs of pods that
// the drain has left, which the next kubelet removes.
func (m *mover) rebooted() {
	m.Helper()
	m.mustRun("ip link delete cni0; rm -f " + m.host.NetworkConf() + "; iptables -t nat -S | grep -i -c cni; rm -rf " + m.host.Leases() + "; umount /var/lib/kubelet 2>&1; mkdir -p /var/log/containers /var/log/pods; find /var/log/containers /var/log/pods -xtype l -print -delete")
	if now := m.hostState(m.host); now != m.initial {
		m.Errorf("the host has\n%s\nthere was before\n%s", now, m.initial)
	}
}

// neverPulled checks that no image was pulled, and that Docker has the same images as at the beginning.
func (m *mover) neverPulled(images string) {
	m.Helper()
	events, err := client.CoreV1().Events(m.name).List(m.Context(), metav1.ListOptions{FieldSelector: "reason=Pulling"})
	m.must(err)
	if now := m.images(); now != images || len(events.Items) > 0 {
		m.Errorf("%d pulls; images\n%s\nwere\n%s", len(events.Items), now, images)
	}
}

func (m *mover) images() string {
	m.Helper()
	return m.mustRun("docker images --all --no-trunc --format '{{.ID}} {{.Repository}}:{{.Tag}}' | sort")
}

// joinOurs joins by kubelet node join, in the mode that doctor --migrate has printed.
func (m *mover) joinOurs() string {
	m.Helper()
	words, err := cluster.JoinArguments()
	m.must(err)
	flags := append(strings.Fields(cluster.JoinerFlags()), cluster.PluginFlags()...)
	network := make(chan error, 1)
	go func() { network <- cluster.NetworkOfJoiner(m.Context()) }()
	said, err := m.run(fmt.Sprintf("%s node join %s --node-name=%s --node-ip=%s --target=/var/lib/k -- '%s' --network-mode=cni -- --network-mode=%s", cluster.Binary("kubelet"),
		words, m.host.Name, m.host.Addr, strings.Join(flags, "' '"), cluster.NetworkMode))
	if err != nil && !strings.Contains(err.Error(), "faults found") { // the doctor reports what lab hosts lack
		m.Fatal(err)
	}
	m.must(<-network)
	return said
}

// leaveOurs leaves by the guide's way back.
func (m *mover) leaveOurs() {
	m.Helper()
	m.documented("kubectl drain")
	m.documented("kubelet node leave", "--target=/var/lib/k", "--docker-endpoint=unix://"+m.host.EngineSocket(), "--remove-data")
	m.documented("kubectl delete node")
	m.gone()
}

// migratesRunning has doctor --migrate read the programs that run, and checks what it prints.
func (m *mover) migratesRunning(want ...string) {
	m.Helper()
	kubelet := cluster.Binary("kubelet")
	said, err := m.run(kubelet + " doctor --migrate | tee /tmp/migrated.yaml")
	m.must(err)
	for _, part := range append(want, cluster.PluginFlags()...) {
		if !strings.Contains(said, part) {
			m.Errorf("doctor --migrate does not print %q", part)
		}
	}
	m.mustRun(kubelet + " config check /tmp/migrated.yaml")
}

// TestFromCRIDockerd: a host changes from upstream's kubelet, kubeadm and cri-dockerd to our kubelet on the same Docker, and back, by the commands of the guide.
func TestFromCRIDockerd(t *testing.T) {
	if os.Getenv("WINKUBE_UPSTREAM") == "" {
		t.Skip("builds upstream's kubelet and cri-dockerd; only with WINKUBE_UPSTREAM=1")
	}
	if cluster.Engine == "" {
		t.Skip("cri-dockerd 0.4 needs Docker 23 or later (API 1.42); only with ENGINE=29")
	}
	ctx := t.Context()
	m := newMover(t, "docs/guides/migrate-cri-dockerd.md")
	join, err := cluster.JoinCommand()
	m.must(err)
	join += " --node-name=" + m.host.Name + " --cri-socket=unix:///var/run/cri-dockerd.sock " + cluster.UpstreamJoinFlags()
	upstream := func() {
		t.Helper()
		m.must(cluster.InstallCRIDockerd(ctx))
		m.mustRun(join)
		m.served("v1.36.3")
	}
	leave := func() {
		t.Helper()
		m.documented("kubectl drain")
		m.documented("kubeadm reset --force --cri-socket")
		m.documented("kubectl delete node")
		m.documented("systemctl disable --now cri-docker.socket")
		m.gone()
		m.must(cluster.RemoveUpstream(ctx))
		m.rebooted()
	}
	upstream()
	images := m.images()
	m.migratesRunning("cri-dockerd (process ", "kubelet (process ", "--network-mode=cni", "--docker-endpoint=unix://"+m.host.EngineSocket(), "--pod-infra-container-image="+lab.PauseImage, "\nclusterDNS:\n")
	leave()

	if said := m.joinOurs(); strings.Contains(said, "another kubelet made") {
		t.Error("containers of cri-dockerd are left")
	}
	m.served("v1.36.3")
	m.neverPulled(images)
	m.leaveOurs()
	m.rebooted()

	upstream() // the way back
	m.neverPulled(images)
	leave()

	upstream()
	m.undrained(func() { m.must(cluster.RemoveUpstream(ctx)) })
	m.leaveOurs()
	m.rebooted()
}

// undrained has our kubelet join while containers of the other one run, which stop ends: nothing touches them, and no pod runs twice. The guide's command
// removes them, and the pods start.
func (m *mover) undrained(stop func()) {
	m.Helper()
	before := m.running(m.host)
	stop()
	m.mustRun("rm -rf /etc/kubernetes/* /var/lib/kubelet/pki /var/lib/kubelet/config.yaml /var/lib/kubelet/kubeadm-flags.env /var/lib/kubelet/instance-config.yaml")
	if said := m.joinOurs(); !strings.Contains(said, fmt.Sprintf("Docker has %d containers that another kubelet made for pods: k8s_", len(before))) {
		m.Errorf("the doctor does not count the %d containers", len(before))
	}
	m.eventually(time.Minute, "an Event about the other container", func(ctx context.Context) error {
		events, err := client.CoreV1().Events(m.name).List(ctx, metav1.ListOptions{})
		for i := range events.Items {
			if strings.Contains(events.Items[i].Message, "which this kubelet did not create, has that name") {
				m.Logf("Event %s: %s", events.Items[i].Reason, events.Items[i].Message)
				return nil
			}
		}
		return errors.Join(err, errors.New("no such Event"))
	})
	if now := m.running(m.host); strings.Join(now, " ") != strings.Join(before, " ") {
		m.Errorf("containers were touched, or pods run twice:\n%q\n%q", now, before)
	}
	text, err := os.ReadFile(filepath.Join(cluster.Root, "docs/guides/migrate-dockershim.md"))
	m.must(err)
	_, command, found := strings.Cut(string(text), "\n    docker ps -a --filter")
	if !found {
		m.Fatal("the guide has no command that removes containers of others")
	}
	command, _, _ = strings.Cut(command, "\n")
	m.mustRun("docker ps -a --filter" + command)
	m.restarts = 1
	m.served("v1.36.3")
}
