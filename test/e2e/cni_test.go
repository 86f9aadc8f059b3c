package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
)

func needPlugins(t *testing.T) {
	t.Helper()
	if cluster.NetworkMode != "cni" {
		t.Skip("needs the pod network of CNI plugins: set NETWORK_MODE=cni")
	}
}

// leases returns the containers that have an address from the node's plugins, by address.
func leases(node *lab.Host) (map[string]string, error) {
	entries, err := os.ReadDir(filepath.Join(node.Leases(), "lab"))
	out := map[string]string{}
	for _, entry := range entries {
		if _, err := netip.ParseAddr(entry.Name()); err != nil {
			continue
		}
		data, err := os.ReadFile(filepath.Join(node.Leases(), "lab", entry.Name()))
		if err != nil {
			return nil, err
		}
		id, _, _ := strings.Cut(string(data), "\r\n")
		out[entry.Name()] = strings.TrimSpace(id)
	}
	return out, err
}

// balanced returns an error if leases and pods of a node differ: each pod that is not on the host's network must have
// exactly one.
func balanced(ctx context.Context, node *lab.Host) error {
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node.Name})
	if err != nil {
		return err
	}
	want := map[string]bool{}
	for _, p := range pods.Items {
		if !p.Spec.HostNetwork && p.Status.PodIP != "" && p.Status.Phase == v1.PodRunning {
			want[p.Status.PodIP] = true
		}
	}
	have, err := leases(node)
	if err != nil {
		return err
	}
	if len(want) != len(have) || slices.ContainsFunc(slices.Collect(maps.Keys(have)), func(a string) bool { return !want[a] }) {
		return fmt.Errorf("pods have %v, the plugins allocated %v", slices.Sorted(maps.Keys(want)), have)
	}
	return nil
}

// A kubelet that is killed while it attaches and detaches pods leaks no addresses and restarts nothing.
func TestKilledWhileAttaching(t *testing.T) {
	needPlugins(t)
	s := newSpace(t)
	node := cluster.Nodes[0]
	s.create(s.pod("stays", node, "serve", "8080"))
	before := s.ready("stays").Status
	const rounds, pods = 4, 4
	for round := range rounds {
		for i := range pods {
			s.create(s.pod(fmt.Sprintf("p%d-%d", round, i), node, "serve", "8080"))
		}
		s.eventually(time.Minute, "a new pod has an address", func(context.Context) error {
			have, err := leases(node)
			if err == nil && len(have) < 2+round {
				err = fmt.Errorf("%d addresses are given", len(have))
			}
			return err
		})
		if round > 0 { // and some go
			for i := range pods / 2 {
				s.must(client.CoreV1().Pods(s.name).Delete(t.Context(), fmt.Sprintf("p%d-%d", round-1, i), metav1.DeleteOptions{}))
			}
		}
		s.must(node.Process("kubelet").Kill9(t.Context()))
		s.must(node.Process("kubelet").Ensure(t.Context()))
	}
	s.allReady(3 * time.Minute)
	s.eventually(60*time.Second, "addresses and pods agree", func(ctx context.Context) error { return balanced(ctx, node) })
	after := s.get("stays").Status
	if after.PodIP != before.PodIP || after.ContainerStatuses[0].ContainerID != before.ContainerStatuses[0].ContainerID {
		t.Errorf("the pod that stayed was %s %s and is %s %s", before.PodIP, before.ContainerStatuses[0].ContainerID, after.PodIP, after.ContainerStatuses[0].ContainerID)
	}
}

// After an external restart, a sandbox has a different network namespace than its containers: the pod is recreated.
// hostPorts work without a portmap plugin.
func TestSandboxRestartedByHand(t *testing.T) {
	needPlugins(t)
	s := newSpace(t)
	node, other := cluster.Nodes[0], cluster.Nodes[1]
	good, err := os.ReadFile(node.NetworkConf())
	s.must(err)
	t.Cleanup(func() { s.must(os.WriteFile(node.NetworkConf(), good, 0o644)) })
	s.must(os.WriteFile(node.NetworkConf(), []byte(strings.Replace(string(good), `,
 {"type": "portmap", "capabilities": {"portMappings": true}}`, "", 1)), 0o644))
	web := s.pod("web", node, "serve", "8080")
	web.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 8080, HostPort: 18082}}
	s.create(web)
	before := s.ready("web")
	answers := func(ctx context.Context) error {
		_, err := ask(ctx, other, "http://"+node.Addr.String()+":18082/")
		return err
	}
	s.eventually(time.Minute, "the hostPort answers without portmap", answers)
	if sockets, err := node.Exec(t.Context(), "ss", "-Hltn", "sport = :18082"); err != nil || sockets == "" {
		t.Errorf("nothing listens on the hostPort, so portmap must have mapped it (%v)", err)
	}
	containers, err := node.Engine().Containers(t.Context())
	s.must(err)
	var box string
	for _, c := range containers {
		if c.Labels["io.kubernetes.pod.uid"] == string(before.UID) && c.Labels["io.kubernetes.docker.type"] == "podsandbox" {
			box = c.ID
		}
	}
	s.must(node.Engine().Restart(t.Context(), box))
	s.eventually(time.Minute, "the containers are in the new network", func(ctx context.Context) error {
		now, err := client.CoreV1().Pods(s.name).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if now.Status.ContainerStatuses[0].ContainerID == before.Status.ContainerStatuses[0].ContainerID {
			return errors.New("the container is still the one in the former namespace")
		}
		if err := isReady(now); err != nil {
			return err
		}
		_, err = ask(ctx, node, "http://"+now.Status.PodIP+":8080/")
		return errors.Join(err, answers(ctx))
	})
	s.told("web", "SandboxChanged", "")
	s.eventually(60*time.Second, "addresses and pods agree", func(ctx context.Context) error { return balanced(ctx, node) })
}

// A sandbox that is removed externally gets a successor with a network. A node without a CNI configuration reports that
// until it gets one. Plugins that hang or print garbage are named on the pod.
func TestPluginsInTrouble(t *testing.T) {
	needPlugins(t)
	s := newSpace(t)
	node := cluster.Nodes[0]
	web := s.pod("web", node, "serve", "8080")
	web.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 8080, HostPort: 18080}}
	s.create(web)
	s.ready("web")
	s.eventually(time.Minute, "the hostPort by the plugin portmap", func(ctx context.Context) error {
		_, err := ask(ctx, cluster.Nodes[1], "http://"+node.Addr.String()+":18080/")
		return err
	})
	good, err := os.ReadFile(node.NetworkConf())
	s.must(err)
	defer func() { s.must(os.WriteFile(node.NetworkConf(), good, 0o644)) }()

	s.must(os.Remove(node.NetworkConf()))
	took := s.eventually(time.Minute, "node without a network is not Ready", func(ctx context.Context) error {
		return s.conditions(ctx, node, v1.ConditionFalse, "has no network")
	})
	t.Logf("not Ready and NetworkUnavailable %.1f s after its configuration was removed", took.Seconds())

	bad := s.badPlugins()
	for name, want := range map[string]string{"rubbish": "printed something other than JSON", "broken": `plugin type="broken"`} {
		s.must(os.WriteFile(node.NetworkConf(), fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "bad", "plugins": [{"type": %q}]}`, name), 0o644))
		node.ExtraArgs["kubelet"] = []string{"--cni-bin-dir=" + bad}
		s.must(node.Process("kubelet").Restart(t.Context()))
		s.create(s.pod(name, node, "serve", "8080"))
		s.eventually(time.Minute, "an event names the plugin", func(ctx context.Context) error {
			events, err := client.CoreV1().Events(s.name).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
			for _, e := range events.Items {
				if e.Reason == "FailedCreatePodSandBox" && strings.Contains(e.Message, want) && strings.Contains(e.Message, name) {
					return nil
				}
			}
			return fmt.Errorf("no such event, %v", err)
		})
	}
	delete(node.ExtraArgs, "kubelet")
	s.must(node.Process("kubelet").Restart(t.Context()))
	s.must(os.WriteFile(node.NetworkConf(), good, 0o644))
	s.eventually(time.Minute, "node is Ready again", func(ctx context.Context) error {
		return s.conditions(ctx, node, v1.ConditionTrue, "")
	})
	s.allReady(3 * time.Minute)
	s.eventually(60*time.Second, "addresses and pods agree", func(ctx context.Context) error { return balanced(ctx, node) })
}

// conditions requires the given Ready status, and NetworkUnavailable with the opposite status and a message that
// contains why.
func (s *space) conditions(ctx context.Context, node *lab.Host, ready v1.ConditionStatus, why string) error {
	have, err := client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	told := false
	for _, c := range have.Status.Conditions {
		told = told || c.Type == v1.NodeNetworkUnavailable
		unavailable := c.Type == v1.NodeNetworkUnavailable && (c.Status == v1.ConditionTrue) == (ready == v1.ConditionTrue)
		if c.Type == v1.NodeReady && c.Status != ready || unavailable || c.Type == v1.NodeNetworkUnavailable && !strings.Contains(c.Message, why) {
			return fmt.Errorf("condition %s is %s: %s", c.Type, c.Status, c.Message)
		}
	}
	if !told {
		return errors.New("no condition NetworkUnavailable")
	}
	return nil
}

// badPlugins creates a directory of faulty plugins.
func (s *space) badPlugins() string {
	dir := s.TempDir()
	for name, script := range map[string]string{"rubbish": "[ $CNI_COMMAND = DEL ] || echo hello", "broken": "[ $CNI_COMMAND = DEL ] || exit 7"} {
		s.must(os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	return dir
}
