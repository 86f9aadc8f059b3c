package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// TestMetricsServer runs the real metrics-server with our kubelets: kubectl top shows every node and a new pod.
func TestMetricsServer(t *testing.T) {
	s := newSpace(t)
	ctx := t.Context()
	s.must(cluster.BuildMetricsServer(ctx))
	node := cluster.Nodes[0]
	s.startMetricsServer()
	s.create(s.pod("serve", node, "serve", "8080"))
	s.ready("serve")

	var pods, nodes string
	took := s.eventually(4*time.Minute, "kubectl top", func(ctx context.Context) (err error) {
		if pods, err = cluster.Kubectl(ctx, "top", "pod", "-n", s.name, "--no-headers"); err != nil {
			return err
		}
		name, _, memory, ok := row(pods)
		if !ok || name != "serve" || memory <= 0 {
			return fmt.Errorf("got %q, want one row of pod serve with some memory", pods)
		}
		if nodes, err = cluster.Kubectl(ctx, "top", "node", "--no-headers"); err != nil {
			return err
		}
		for _, host := range cluster.Nodes {
			if !strings.Contains(nodes, host.Name+" ") || strings.Contains(nodes, "<unknown>") {
				return fmt.Errorf("kubectl top node does not know %s:\n%s", host.Name, nodes)
			}
		}
		return nil
	})
	t.Logf("after %.1f s:\n%s%s", took.Seconds(), pods, nodes)
}

// row parses the first line of kubectl top pod: name, millicores and mebibytes.
func row(text string) (name string, cpu, memory int, ok bool) {
	fields := strings.Fields(text)
	if len(fields) < 3 {
		return "", 0, 0, false
	}
	cpu, err1 := strconv.Atoi(strings.TrimSuffix(fields[1], "m"))
	memory, err2 := strconv.Atoi(strings.TrimSuffix(fields[2], "Mi"))
	return fields[0], cpu, memory, errors.Join(err1, err2) == nil
}

// startMetricsServer runs metrics-server on the control plane's host, with its service account's rights and token.
func (s *space) startMetricsServer() {
	s.Helper()
	control := cluster.Control
	text, err := os.ReadFile("testdata/metrics-server.yaml")
	s.must(err)
	dir := s.TempDir()
	objects := filepath.Join(dir, "objects.yaml")
	s.must(os.WriteFile(objects, []byte(strings.ReplaceAll(string(text), "ADDRESS", control.Addr.String())), 0o644))
	_, err = cluster.Kubectl(s.Context(), "apply", "-f", objects)
	s.must(err)
	s.Cleanup(func() {
		if _, err := cluster.Kubectl(context.Background(), "delete", "--ignore-not-found", "-f", objects); err != nil {
			s.Error(err)
		}
	})
	token, err := client.CoreV1().ServiceAccounts("kube-system").CreateToken(s.Context(), "metrics-server", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	s.must(err)
	config, err := clientcmd.LoadFromFile(control.PKI("controller-manager.kubeconfig"))
	s.must(err)
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	s.must(clientcmd.WriteToFile(*config, kubeconfig))

	log, err := os.Create(filepath.Join(dir, "log"))
	s.must(err)
	program := control.Command(context.Background(), filepath.Join(cluster.Tools, "metrics-server"),
		"--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--kubelet-certificate-authority="+control.PKI("ca.crt"), "--kubelet-preferred-address-types=InternalIP", "--kubelet-use-node-status-port",
		"--metric-resolution=10s", "--kubelet-request-timeout=9s", "--secure-port=4443", "--cert-dir="+dir)
	program.Stdout, program.Stderr = log, log
	s.must(program.Start())
	s.Cleanup(func() {
		_ = program.Process.Kill()
		_ = program.Wait()
		if data, err := os.ReadFile(log.Name()); err == nil && s.Failed() {
			s.Logf("metrics-server:\n%s", data)
		}
	})
}
