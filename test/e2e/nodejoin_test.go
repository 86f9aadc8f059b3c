package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
)

// TestNodeJoin: another host becomes a node with the guide's single command, serves a pod and a Service, joins again
// without changes, and leaves nothing of ours behind. It has no unit files; its systemctl is a script.
func TestNodeJoin(t *testing.T) {
	s := newSpace(t)
	ctx, joiner := t.Context(), cluster.Joiner
	s.must(cluster.UpJoiner(ctx))
	s.bareJoiner()
	before := s.hostState(joiner)
	_, err := cluster.Kubectl(ctx, "apply", "-f", filepath.Join(cluster.Root, "build/kubernetes/node-join.yaml"))
	s.must(err)
	command, err := cluster.JoinCommand()
	s.must(err)
	command = fmt.Sprintf("%s/kubelet node join %s --node-name=%s --node-ip=%s --target=/var/lib/k -- %s -- --network-mode=%s", filepath.Dir(cluster.Binary("kubelet")),
		strings.TrimPrefix(command, "kubeadm join "), joiner.Name, joiner.Addr, "'"+strings.ReplaceAll(cluster.JoinerFlags(), " ", "' '")+"'", cluster.NetworkMode)
	join := func() string {
		s.Helper()
		transcript, err := joiner.Shell(ctx, command)
		t.Logf("$ %s\n%s", command, transcript)
		if err != nil && !strings.Contains(err.Error(), "faults found") { // the doctor reports what lab hosts lack, such as live-restore
			t.Fatal(err)
		}
		return transcript
	}
	join()
	pods := func() string {
		text, err := joiner.Shell(ctx, "cat /run/kubelet.pid /run/proxy.pid")
		s.must(err)
		return text
	}
	processes := pods()
	s.create(s.pod("joined", joiner, "serve", "8080"))
	s.ready("joined")
	if again := join(); strings.Count(again, "unchanged") != 6 || pods() != processes {
		t.Errorf("joining again changes something: processes %q, were %q", pods(), processes)
	}
	node, err := client.CoreV1().Nodes().Get(ctx, joiner.Name, metav1.GetOptions{})
	s.must(err)
	if node.Labels["winkube.io/proxy"] != "true" {
		t.Errorf("labels %v", node.Labels)
	}
	service := client.CoreV1().Services("default")
	kubernetes, err := service.Get(ctx, "kubernetes", metav1.GetOptions{})
	s.must(err)
	s.eventually(2*time.Minute, "the proxy serves the API server's Service", func(ctx context.Context) error {
		_, err := joiner.Exec(ctx, filepath.Join(cluster.Tools, "kubectl"), "--kubeconfig="+cluster.Kubeconfig(), "--server=https://"+kubernetes.Spec.ClusterIP, "--request-timeout=5s", "get", "--raw", "/version")
		return err
	})
	s.must(client.CoreV1().Pods(s.name).Delete(ctx, "joined", metav1.DeleteOptions{}))
	s.leaveTwice(joiner, before)
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} { // v2 and v1
		if left, err := filepath.Glob(filepath.Join(pattern, joiner.Namespace(), "kubepods")); err != nil || len(left) > 0 {
			t.Errorf("cgroups are left: %q, %v", left, err)
		}
	}
}

// bareJoiner moves away the units and settings that kubeadm needs on the third host, until the test ends. Then it is as before, with nothing running.
func (s *space) bareJoiner() {
	s.Helper()
	ctx, joiner := s.Context(), cluster.Joiner
	const saved = "/var/lib/saved"
	_, err := joiner.Shell(ctx, "mkdir -p "+saved+" && cd /etc/systemd/system && mv kubelet.service kubelet.service.d "+saved+" && mv /etc/default/kubelet "+saved+"/settings")
	s.must(err)
	s.Cleanup(func() {
		ctx := context.Background()
		if log, err := joiner.Shell(ctx, "tail -n 40 /var/log/kubelet.log /var/log/proxy.log"); err == nil && s.Failed() {
			s.Logf("%s", log)
		}
		_, _ = joiner.Shell(ctx, "systemctl stop proxy; systemctl stop kubelet; rm -f /etc/systemd/system/proxy.service; true") // they may run after a failure
		if _, err := joiner.Shell(ctx, "[ -d "+saved+" ] && cd "+saved+" && mv kubelet.service kubelet.service.d /etc/systemd/system/ && mv settings /etc/default/kubelet && rmdir "+saved); err != nil {
			s.Error(err)
		}
		if err := cluster.DownJoiner(ctx); err != nil {
			s.Error(err)
		}
		if err := client.CoreV1().Nodes().Delete(ctx, joiner.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			s.Error(err)
		}
		s.noPodsOf(joiner.Name)
	})
	s.leave(joiner) // kubeadm reset in an earlier test leaves the pod network
}

// leaveTwice runs the leave command twice; the second run has nothing to do.
func (s *space) leaveTwice(joiner *lab.Host, before string) {
	s.Helper()
	for round := range 2 {
		s.leave(joiner)
		if after := s.hostState(joiner); after != before {
			s.Errorf("round %d of leaving leaves\n%s\nthere was before\n%s", round, after, before)
		}
	}
}

func (s *space) leave(joiner *lab.Host) {
	s.Helper()
	transcript, err := joiner.Shell(s.Context(), fmt.Sprintf("%s/kubelet node leave --target=/var/lib/k --docker-endpoint=unix://%s --remove-data", filepath.Dir(cluster.Binary("kubelet")), joiner.EngineSocket()))
	s.Logf("%s", transcript)
	s.must(err)
}

// hostState returns what a node changes on a host: what kubeadm reset checks, interfaces, routes and units.
func (s *space) hostState(host *lab.Host) string {
	s.Helper()
	text, err := host.Shell(s.Context(), `ip -o link | sed 's/^[0-9]*: //; s/:.*//; s/@.*//' | grep -v '^veth' | sort; ip -o -4 address | awk '{print $2, $4}' | sort; ip route | sort
ip rule | sort; ls /etc/systemd/system /etc/default | grep -e kubelet.service -e proxy -e '^kubelet$'; ls -d /var/lib/k 2>/dev/null; true`)
	s.must(err)
	return leftovers(s, host) + text
}
