package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificates "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/output"
)

// TestNodeJoinByFiles makes the third host a node by the commands of docs/guides/k3s-rke2.md, which it reads from the page: credentials by kubectl alone, join with
// them, approve the serving certificate. The API server then verifies the kubelet, and the kubelet the API server.
func TestNodeJoinByFiles(t *testing.T) {
	s := newSpace(t)
	ctx, joiner := t.Context(), cluster.Joiner
	s.must(cluster.UpJoiner(ctx))
	s.bareJoiner()
	before := s.hostState(joiner)
	t.Cleanup(func() {
		_, _ = cluster.Kubectl(context.Background(), "delete", "--ignore-not-found", "csr/"+joiner.Name+"-node", "csr/"+joiner.Name+"-proxy", "clusterrolebinding/winkube:renew")
	})
	dir := t.TempDir()
	words, err := cluster.JoinArguments()
	s.must(err)
	address := strings.Fields(words)[0]
	page := strings.NewReplacer("win01", joiner.Name, "10.0.0.1:6443", address)
	made := exec.CommandContext(ctx, "bash", "-euxc", page.Replace(s.commands("docs/guides/k3s-rke2.md", "## 2. Credentials")))
	made.Dir, made.Env = dir, append(os.Environ(), "KUBECONFIG="+cluster.Kubeconfig(), "PATH="+cluster.Tools+":"+os.Getenv("PATH"))
	said, err := output.Of(made)
	t.Logf("%s", said)
	s.must(err)

	join, rest, _ := strings.Cut(page.Replace(s.commands("docs/guides/k3s-rke2.md", "## 3. Join")), "\n")
	first, flags, _ := strings.Cut(join, " -- ")
	join = fmt.Sprintf("cd %s && %s/%s --node-ip=%s --target=/var/lib/k -- %s '%s' -- --network-mode=%s", dir, filepath.Dir(cluster.Binary("kubelet")), first, joiner.Addr, flags,
		strings.ReplaceAll(cluster.JoinerFlags(), " ", "' '"), cluster.NetworkMode)
	transcript, err := joiner.Shell(ctx, join)
	t.Logf("$ %s\n%s", join, transcript)
	if err != nil && !strings.Contains(err.Error(), "faults found") { // the doctor reports what lab hosts lack
		t.Fatal(err)
	}
	if want := "kubectl get csr\nkubectl certificate approve CSR"; !strings.Contains(rest, want) {
		t.Errorf("the page has no %q:\n%s", want, rest)
	}
	s.create(s.pod("files", joiner, "serve", "8080"))
	s.ready("files")
	if _, err := cluster.Kubectl(ctx, "logs", "--namespace="+s.name, "files"); err == nil {
		t.Error("the API server accepts a kubelet whose serving certificate no one has signed")
	}
	s.approvesServing(joiner.Name)
	s.eventually(2*time.Minute, "logs of the pod", func(ctx context.Context) error {
		_, err := cluster.Kubectl(ctx, "logs", "--namespace="+s.name, "files")
		return err
	})
	s.must(client.CoreV1().Pods(s.name).Delete(ctx, "files", metav1.DeleteOptions{}))
	s.leaveTwice(joiner, before)
}

// approvesServing approves the requests for a node's serving certificate, as an administrator does.
func (s *space) approvesServing(node string) {
	s.Helper()
	s.eventually(time.Minute, "the request for a serving certificate", func(ctx context.Context) error {
		list, err := client.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, one := range list.Items {
			if one.Spec.SignerName == certificates.KubeletServingSignerName && one.Spec.Username == "system:node:"+node && len(one.Status.Conditions) == 0 {
				_, err := cluster.Kubectl(ctx, "certificate", "approve", one.Name)
				return err
			}
		}
		return fmt.Errorf("%d requests, none of this node", len(list.Items))
	})
}

// commands returns the indented lines of a page's section.
func (s *space) commands(page, section string) string {
	s.Helper()
	text, err := os.ReadFile(filepath.Join(cluster.Root, page))
	s.must(err)
	_, rest, found := strings.Cut(string(text), "\n"+section+"\n")
	if !found {
		s.Fatalf("%s has no section %q", page, section)
	}
	rest, _, _ = strings.Cut(rest, "\n## ")
	var out strings.Builder
	for line := range strings.Lines(rest) {
		if command, ok := strings.CutPrefix(line, "    "); ok {
			out.WriteString(command)
		}
	}
	return out.String()
}
