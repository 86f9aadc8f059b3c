package join

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	certificates "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/windows/rig"
)

// criPipe is where kubeadm looks for Docker.
const criPipe = `\\.\pipe\cri-dockerd`

// kubeadmPath returns the path of upstream's kubeadm.exe, built from unmodified sources.
func kubeadmPath() string {
	return filepath.Join(cluster.Root, "_output/tools/windows/kubeadm.exe")
}

// TestKubeadm lets upstream's kubeadm.exe join a Windows Server to the cluster and reset it, with the commands of
// docs/guides/joining.md.
func TestKubeadm(t *testing.T) {
	t.Parallel()
	host := <-free
	t.Cleanup(func() { free <- host })
	m := newMember(t, host, 20348)
	m.boot()
	before := m.kubeadmFiles()
	m.preparesForKubeadm()
	m.linuxDirectory("/var/lib/kubelet")
	m.refusesWrongHash()
	begin := time.Now()
	m.kubeadm(append(m.joinWords(), "--node-name="+m.host.Name))
	m.did("kubeadm.exe join", seconds(time.Since(begin)))
	m.until(3*time.Minute, "Node Ready", func(context.Context) error { return m.ready(begin) })
	m.did("kubeadm.exe join: Node Ready", seconds(time.Since(begin)))
	m.runsJoinedPod()
	m.again()
	if err := client.CoreV1().Nodes().Delete(m.Context(), m.host.Name, metav1.DeleteOptions{}); err != nil {
		m.Fatal(err)
	}
	if there := m.kubeadmFiles(); len(m.containers()) == 0 || !slices.ContainsFunc(there, func(f string) bool { return strings.HasSuffix(f, "kubeadm-flags.env") }) {
		m.Errorf("a joined host with a pod should have containers and kubeadm's files; it has %q", there)
	}
	begin = time.Now()
	m.kubeadm([]string{"reset", "--force"})
	m.did("kubeadm.exe reset", seconds(time.Since(begin)))
	m.leftByReset(before)
}

// linuxDirectory creates a directory on this machine until the test ends, unless it exists. Wine treats a path with slashes as a Linux path if its
// first directories exist there, and Linux denies Wine's user access. kubeadm does not create directories that exist. Paths of its files have
// backslashes, so that they are in the prefix.
func (m *member) linuxDirectory(path string) {
	m.Helper()
	err := os.Mkdir(path, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return
	}
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() {
		if err := os.Remove(path); err != nil {
			m.Error(err)
		}
	})
}

// preparesForKubeadm copies the programs and installs both services, as docs/guides/joining.md says.
func (m *member) preparesForKubeadm() {
	m.Helper()
	if err := m.Own(m.Path(`C:\k`)); err != nil {
		m.Fatal(err)
	}
	m.copyProgram("kubelet.exe")
	program, err := os.ReadFile(kubeadmPath())
	if err == nil { // its files use the drive of its working directory (kubernetes cmd/kubeadm/app/componentconfigs/kubelet_windows.go)
		err = m.WriteProgram(m.Path(`C:\k\kubeadm.exe`), program)
	}
	if err != nil {
		m.Fatal(err)
	}
	m.cri("install", "--pod-infra-container-image="+lab.PauseImage)
	m.cri("start")
	if err := m.TakeFirst(m.Context(), criPipe); err != nil {
		m.Fatal(err)
	}
	m.does("kubelet.exe", "kubelet: installed", "install", "--kubeadm", "--node-ip="+m.host.Addr.String(), "--pod-infra-container-image="+lab.PauseImage,
		"--cluster-cidr="+lab.PodCIDR, "--service-cidr="+lab.ServiceCIDR, "--v=2")
	m.Cleanup(func() { // a service that still runs ends with the prefix
		if text, err := os.ReadFile(m.Path(`C:\var\log\kubelet\kubelet.log`)); err == nil && m.Failed() {
			fmt.Fprintf(m.Output(), "kubelet.exe logged, at its end:\n%s\n", text[max(0, len(text)-12000):])
		}
		if err := m.forget(context.Background()); err != nil {
			m.Error(err)
		}
	})
}

// cri runs `kubelet.exe cri service VERB`.
func (m *member) cri(args ...string) string {
	m.Helper()
	said, err := m.Finish(m.agentAt(`C:\k\kubelet.exe`, append([]string{"cri", "service"}, args...)))
	if err != nil || !strings.HasPrefix(said.Stdout, "kubelet-cri: ") && args[0] != "status" {
		m.Fatalf("kubelet.exe cri service %s: %v:\n%s", args[0], err, said)
	}
	return said.Stdout
}

// joinWords returns the arguments that `kubeadm token create --print-join-command` prints.
func (m *member) joinWords() []string {
	m.Helper()
	line, err := cluster.JoinCommand()
	if err != nil {
		m.Fatal(err)
	}
	return strings.Fields(line)[1:]
}

// kubeadm runs kubeadm.exe, with kubelet.exe in PATH.
func (m *member) kubeadm(args []string) string {
	m.Helper()
	out, err := m.tryKubeadm(args)
	m.Logf("> kubeadm.exe %s\n%s", strings.Join(args, " "), out)
	if err != nil {
		m.Fatalf("kubeadm.exe %s: %v", args[0], err)
	}
	return out
}

func (m *member) tryKubeadm(args []string) (string, error) {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), 10*time.Minute)
	defer cancel()
	cmd := m.Command(ctx, `C:\k\kubeadm.exe`, args...)
	cmd.Env = append(cmd.Env, `WINEPATH=C:\k`)
	said, err := m.Finish(cmd)
	return said.String(), err
}

// refusesWrongHash requires that a join with another cluster's CA hash leaves nothing behind, so that the correct
// command works next.
func (m *member) refusesWrongHash() {
	m.Helper()
	before := m.kubeadmFiles()
	words := m.joinWords()
	words[len(words)-1] = "sha256:" + strings.Repeat("0", 64)
	out, err := m.tryKubeadm(append(words, "--node-name="+m.host.Name))
	if err == nil || !strings.Contains(out, "pinned") && !strings.Contains(out, "not trusted") && !strings.Contains(out, "hash") {
		m.Errorf("kubeadm.exe join with a wrong hash: %v\n%s", err, out)
	}
	after := slices.DeleteFunc(m.kubeadmFiles(), func(file string) bool { return strings.HasSuffix(file, `\pki\ca.crt`) }) // Wine treats kubeadm's path /etc/kubernetes/pki as Linux's
	if !slices.Equal(before, after) {
		m.Errorf("a refused join leaves %q, there was %q", after, before)
	}
}

// runsJoinedPod requires that a pod runs, that its logs are available through the serving certificate that the kubelet requested, and that the
// kubelet uses kubeadm's files.
func (m *member) runsJoinedPod() {
	m.Helper()
	m.approvesServing()
	m.namespace("kubeadm")
	grace := int64(2)
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "joined", Namespace: m.space}, Spec: v1.PodSpec{NodeName: m.host.Name, TerminationGracePeriodSeconds: &grace,
		Containers: []v1.Container{{Name: "main", Image: lab.SampleImage, ImagePullPolicy: v1.PullNever, Args: []string{"serve", "8080"}}}}}
	if _, err := client.CoreV1().Pods(m.space).Create(m.Context(), p, metav1.CreateOptions{}); err != nil {
		m.Fatal(err)
	}
	m.until(3*time.Minute, "the pod Ready", func(context.Context) error { return m.podsReady(1, 0) })
	m.served(time.Minute, "logs by the requested serving certificate", func(ctx context.Context) error {
		out, err := cluster.Kubectl(ctx, "logs", "-n", m.space, "joined")
		if err == nil && !strings.Contains(out, "serving on :8080") {
			err = fmt.Errorf("logs are %q", out)
		}
		return err
	})
	status := m.does("kubelet.exe", "running", "status")
	if !strings.Contains(status, "--kubeadm\n") && !strings.Contains(status, "--kubeadm\r\n") {
		m.Errorf("the service has other flags:\n%s", status)
	}
	m.did("joined by kubeadm: a pod Ready, logs", "ok")
}

// approvesServing approves the request for a serving certificate, like an administrator.
func (m *member) approvesServing() {
	m.Helper()
	requests := client.CertificatesV1().CertificateSigningRequests()
	m.served(3*time.Minute, "request for a serving certificate", func(ctx context.Context) error {
		list, err := requests.List(ctx, metav1.ListOptions{FieldSelector: "spec.signerName=" + certificates.KubeletServingSignerName})
		if err != nil {
			return err
		}
		for _, csr := range list.Items {
			if csr.Spec.Username != "system:node:"+m.host.Name || len(csr.Status.Conditions) > 0 {
				continue
			}
			csr.Status.Conditions = []certificates.CertificateSigningRequestCondition{{Type: certificates.CertificateApproved, Status: v1.ConditionTrue, Reason: "test"}}
			_, err := requests.UpdateApproval(ctx, csr.Name, &csr, metav1.UpdateOptions{})
			return err
		}
		return errors.New("none yet")
	})
}

// again requires that kubeadm refuses a second join and leaves the node as it is.
func (m *member) again() {
	m.Helper()
	before := m.containers()
	if out, err := m.tryKubeadm(append(m.joinWords(), "--node-name="+m.host.Name)); err == nil || !strings.Contains(out, "already exists") {
		m.Errorf("kubeadm.exe join of a joined host: %v\n%s", err, out)
	}
	if err := m.ready(time.Time{}); err != nil || !slices.Equal(before, m.containers()) {
		m.Errorf("after a second join: %v, containers before %v, now %v", err, before, m.containers())
	}
}

// leftByReset requires that nothing remains of the node, and that the services are as before the join.
func (m *member) leftByReset(before []string) {
	m.Helper()
	if list, err := m.host.Engine().Containers(m.Context()); err != nil || len(list) > 0 {
		m.Errorf("kubeadm.exe reset leaves %d containers, %v", len(list), err)
	}
	after := slices.DeleteFunc(m.kubeadmFiles(), func(file string) bool { return strings.HasSuffix(file, `\pki\ca.crt`) }) // Wine treats kubeadm's path /etc/kubernetes/pki as Linux's
	if !slices.Equal(before, after) {
		m.Errorf("kubeadm.exe reset leaves %q, there was %q", after, before)
	}
	m.does("kubelet.exe", "kubelet: stopped already", "stop")
	m.does("kubelet.exe", "kubelet: uninstalled", "uninstall")
	if status := m.cri("status"); !strings.Contains(status, "running") || !strings.Contains(status, " cri\n") && !strings.Contains(status, " cri\r\n") {
		m.Errorf("the status of kubelet-cri:\n%s", status)
	}
	for _, verb := range []string{"stop", "uninstall"} {
		m.cri(verb)
	}
	m.did("kubeadm.exe reset: nothing left", "ok")
}

// kubeadmFiles returns the paths of the files in the directories that kubeadm and kubelet write to.
func (m *member) kubeadmFiles() (found []string) {
	m.Helper()
	for _, dir := range []string{`C:\etc\kubernetes`, `C:\var\lib\kubelet`, `C:\var\log\pods`, `C:\var\log\containers`} {
		err := filepath.WalkDir(m.Path(dir), func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil && !entry.IsDir() {
				found = append(found, rig.WindowsPath(strings.TrimPrefix(path, m.Dir)))
			}
			return err
		})
		if err != nil {
			m.Fatal(err)
		}
	}
	return found
}
