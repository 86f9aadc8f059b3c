package e2e

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	certificates "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
)

// TestKubeadmJoin: kubeadm joins a third host, ignoring only the kernel check. It runs a pod there, has certificates
// renewed, and leaves nothing of ours behind. With WINKUBE_GENERATIONS=10 that many client certificates of 2 minutes
// follow each other.
func TestKubeadmJoin(t *testing.T) {
	s := newSpace(t)
	ctx := t.Context()
	joiner := cluster.Joiner
	s.must(cluster.UpJoiner(ctx))
	t.Cleanup(func() {
		if log, err := joiner.Exec(context.Background(), "tail", "-n", "80", "/var/log/kubelet.log"); err == nil && t.Failed() {
			t.Logf("kubelet:\n%s", log)
		}
		if err := cluster.DownJoiner(context.Background()); err != nil {
			t.Error(err)
		}
		if err := client.CoreV1().Nodes().Delete(context.Background(), joiner.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
		s.noPodsOf(joiner.Name)
	})
	before := leftovers(s, joiner)
	s.shortLives(30 * time.Second) // a node renews when 10 to 30 % are left

	command, err := cluster.JoinCommand()
	s.must(err)
	command += " --node-name " + joiner.Name + " --ignore-preflight-errors=SystemVerification"
	transcript, err := joiner.Shell(ctx, command)
	t.Logf("$ %s\n%s", command, transcript)
	s.must(err)
	s.eventually(2*time.Minute, "node Ready", func(ctx context.Context) error {
		node, err := client.CoreV1().Nodes().Get(ctx, joiner.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == v1.NodeReady && c.Status == v1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("%v", node.Status.Conditions)
	})
	s.approveServing(joiner)
	s.create(s.pod("joined", joiner, "serve", "8080"))
	s.ready("joined")
	s.eventually(time.Minute, "logs by the requested serving certificate", func(ctx context.Context) error {
		_, err := client.CoreV1().Pods(s.name).GetLogs("joined", &v1.PodLogOptions{}).DoRaw(ctx)
		return err
	})
	s.generations(joiner)
	s.migrates(joiner)

	s.must(client.CoreV1().Nodes().Delete(ctx, joiner.Name, metav1.DeleteOptions{}))
	if there := leftovers(s, joiner); strings.Count(there, "container ") < 2 || !strings.Contains(there, " /var/lib/kubelet/pods/") {
		t.Errorf("a joined host with a pod should have containers and mounts:\n%s", there)
	}
	transcript, err = joiner.Shell(ctx, "kubeadm reset --force")
	t.Logf("$ kubeadm reset --force\n%s", transcript)
	s.must(err)
	if after := leftovers(s, joiner); after != before {
		t.Errorf("left by kubeadm reset:\n%s\nthere was before:\n%s", after, before)
	}
}

// migrates has doctor --migrate read what kubeadm wrote, and the kubelet accept the result.
func (s *space) migrates(joiner *lab.Host) {
	s.Helper()
	kubelet := cluster.Binary("kubelet")
	text, err := joiner.Shell(s.Context(), `. /var/lib/kubelet/kubeadm-flags.env
`+kubelet+` doctor --migrate -- --kubeconfig=/etc/kubernetes/kubelet.conf --config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS | tee /tmp/migrated.yaml && `+kubelet+` config check /tmp/migrated.yaml`)
	s.must(err)
	for _, want := range []string{"# This kubelet accepts it on this host.", "--kubeconfig=/etc/kubernetes/kubelet.conf", "--network-mode=cni", "\nclusterDNS:\n", "/tmp/migrated.yaml: good"} {
		if !strings.Contains(text, want) {
			s.Errorf("doctor --migrate does not print %q:\n%s", want, text)
		}
	}
}

// noPodsOf removes the pods of a deleted node in all namespaces: no kubelet is left to report their end, and the
// garbage collector would remove them during a later test.
func (s *space) noPodsOf(node string) {
	s.Helper()
	s.eventually(time.Minute, "no pods of "+node, func(ctx context.Context) error {
		pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		if err != nil || len(pods.Items) == 0 {
			return err
		}
		for _, pod := range pods.Items {
			err = errors.Join(err, client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *metav1.NewDeleteOptions(0)))
		}
		if err == nil {
			err = fmt.Errorf("%d were there", len(pods.Items))
		}
		return err
	})
}

// leftovers lists what a node leaves on a host: containers, mounts, and files in kubeadm's and the kubelet's
// directories. The CA's certificate directory and kubeadm's own empty directories are not ours.
func leftovers(s *space, host *lab.Host) string {
	s.Helper()
	list, err := host.Engine().Containers(s.Context())
	s.must(err)
	var out strings.Builder
	for _, c := range list {
		fmt.Fprintf(&out, "container %v\n", c.Names)
	}
	text, err := host.Shell(s.Context(), `grep -o ' /var/lib/kubelet[^ ]*' /proc/mounts; find /var/lib/kubelet /etc/kubernetes /var/log/pods /var/log/containers /var/lib/winkube -not -type d 2>/dev/null; true`)
	s.must(err)
	return out.String() + text
}

// shortLives sets the lifetime of signed certificates until the test ends.
func (s *space) shortLives(life time.Duration) {
	s.Helper()
	if os.Getenv("WINKUBE_GENERATIONS") != "" {
		life = 2 * time.Minute
	}
	manager := cluster.Control.Process("kube-controller-manager")
	set := func(args ...string) {
		cluster.Control.ExtraArgs["kube-controller-manager"] = args
		if err := manager.Ensure(context.Background()); err != nil {
			s.Error(err)
		}
	}
	set("--cluster-signing-duration=" + life.String())
	s.Cleanup(func() { set() })
}

// approveServing approves requests for serving certificates until the test ends, as an administrator or a controller would. It
// returns after the first.
func (s *space) approveServing(host *lab.Host) {
	s.Helper()
	ctx, stop := context.WithCancel(context.Background())
	watch, err := client.CertificatesV1().CertificateSigningRequests().Watch(ctx, metav1.ListOptions{}) // begins with those that are there
	if err != nil {
		stop()
		s.Fatal(err)
	}
	approved, ended := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(approved) })
	go func() {
		defer close(ended)
		for range watch.ResultChan() {
			found, err := approveOne(ctx, host)
			if err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) { // another change of the request is another event
				s.Error(err)
			}
			if found && err == nil {
				first()
			}
		}
	}()
	s.Cleanup(func() {
		stop()
		watch.Stop()
		<-ended
	})
	select {
	case <-approved:
	case <-time.After(2 * time.Minute):
		s.Fatal("no request for a serving certificate")
	}
}

func approveOne(ctx context.Context, host *lab.Host) (found bool, err error) {
	requests := client.CertificatesV1().CertificateSigningRequests()
	list, err := requests.List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	for _, csr := range list.Items {
		if csr.Spec.SignerName != certificates.KubeletServingSignerName || csr.Spec.Username != "system:node:"+host.Name || len(csr.Status.Conditions) > 0 {
			continue
		}
		csr.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateApproved, Status: v1.ConditionTrue, Reason: "test"}}
		_, err := requests.UpdateApproval(ctx, csr.Name, &csr, metav1.UpdateOptions{})
		return true, err
	}
	return false, nil
}

// askForLogs repeatedly requests the logs of the pod on the joined host over its kubelet's serving certificates, until the
// returned function is called.
func (s *space) askForLogs() func() (count int, failures []error) {
	ctx, stop := context.WithCancel(s.Context())
	var group sync.WaitGroup
	var count int
	var failures []error
	group.Go(func() {
		for ctx.Err() == nil {
			_, err := client.CoreV1().Pods(s.name).GetLogs("joined", &v1.PodLogOptions{}).DoRaw(ctx)
			if ctx.Err() == nil {
				count++
			}
			if err != nil && ctx.Err() == nil {
				failures = append(failures, fmt.Errorf("%s: %w", time.Now().Format(time.TimeOnly), err))
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond): // interval between requests
			}
		}
	})
	return func() (int, []error) {
		stop()
		group.Wait()
		return count, failures
	}
}

// generations waits until the configured number of client certificates have been issued, while the node stays Ready.
func (s *space) generations(host *lab.Host) {
	s.Helper()
	wanted := 1
	if text := os.Getenv("WINKUBE_GENERATIONS"); text != "" {
		var err error
		wanted, err = strconv.Atoi(text)
		s.must(err)
	}
	digest := func(ctx context.Context) (string, error) {
		text, err := host.Exec(ctx, "cat", "/var/lib/kubelet/pki/kubelet-client-current.pem")
		sum := sha256.Sum256([]byte(text))
		return fmt.Sprintf("%x", sum[:4]), err
	}
	last, err := digest(s.Context())
	s.must(err)
	asked := s.askForLogs()
	for generation := range wanted {
		took := s.eventually(3*time.Minute, "another client certificate", func(ctx context.Context) error {
			now, err := digest(ctx)
			if err == nil && now == last {
				err = errors.New("still the same")
			}
			if err == nil {
				last = now
			}
			return err
		})
		s.Logf("generation %d: %s after %.1f s", generation+1, last, took.Seconds())
	}
	count, failures := asked()
	s.Logf("%d requests for logs meanwhile, %d failed", count, len(failures))
	if len(failures) > 0 {
		s.Errorf("the first of them: %v", failures[0])
	}
	log, err := host.Shell(s.Context(), "grep -c 'Unauthorized\\|certificate has expired\\|bad certificate' /var/log/kubelet.log; true")
	s.must(err)
	if strings.TrimSpace(log) != "0" {
		s.Errorf("lines of refused requests in the kubelet's log: %s", log)
	}
}
