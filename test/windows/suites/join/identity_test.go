package join

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/windows/rig"
)

// identityPod is a pod with an isolation mode, a credential spec and limits.
const identityPod = `---
apiVersion: v1
kind: Pod
metadata:
  name: %[1]s
  labels: {winkube.test/files: "true"}
  annotations: {experimental.windows.kubernetes.io/isolation-type: %[3]q}
spec:
  nodeSelector: {kubernetes.io/hostname: %[2]s}
  restartPolicy: Never
  securityContext: {windowsOptions: {gmsaCredentialSpec: %[4]q, runAsUserName: ContainerUser}}
  containers:
  - name: app
    image: ` + lab.SampleImage + `
    args: [hostname]
    resources: {limits: {cpu: 500m, memory: 64Mi}}
`

// identities runs pods with Hyper-V isolation and a credential spec, and one whose credential spec is not JSON.
func (m *member) identities() {
	m.Helper()
	ctx := m.Context()
	text := fmt.Sprintf(identityPod, "gmsa", m.host.Name, "process", gmsaSpec) + fmt.Sprintf(identityPod, "hyperv", m.host.Name, "hyperv", gmsaSpec) +
		fmt.Sprintf(identityPod, "rubbish", m.host.Name, "process", "CmsPlugins: x")
	manifest := filepath.Join(m.TempDir(), "identities.yaml")
	if err := os.WriteFile(manifest, []byte(text), 0o644); err != nil {
		m.Fatal(err)
	}
	if _, err := cluster.Kubectl(ctx, "apply", "-n", m.space, "-f", manifest); err != nil {
		m.Fatal(err)
	}
	scheme := ""
	for name, isolation := range map[string]container.Isolation{"gmsa": container.IsolationProcess, "hyperv": container.IsolationHyperV} {
		m.ended(name, v1.PodSucceeded)
		in := m.inspect(name, 0)
		h := in.HostConfig
		if len(h.SecurityOpt) == 1 {
			scheme, _, _ = strings.Cut(strings.TrimPrefix(h.SecurityOpt[0], "credentialspec="), "://")
		}
		if h.Isolation != isolation || in.Config.User != "ContainerUser" || h.NanoCPUs != 5e8 || h.Memory != 64<<20 || h.CPUShares != 0 || len(h.SecurityOpt) != 1 {
			m.Errorf("%s was made with isolation %q, user %q, %+v, %q", name, h.Isolation, in.Config.User, h.Resources, h.SecurityOpt)
		}
		if alone := !h.NetworkMode.IsContainer(); alone != (isolation == container.IsolationHyperV || m.Build < 16299) {
			m.Errorf("%s is in network %q", name, h.NetworkMode)
		}
	}
	m.specsGone()
	m.did("gMSA, removed afterwards", scheme+"://")
	m.did("Hyper-V isolation: one container, no infra container", "ok")
	m.did("limits of CPU and memory, user", "ok")
	m.event("rubbish", "gmsaCredentialSpec is not a JSON object")
	m.did("credential spec that is no JSON", "Event")
	if _, err := cluster.Kubectl(ctx, "delete", "pods", "-n", m.space, "-l", "winkube.test/files=true", "--grace-period=0", "--wait=true"); err != nil {
		m.Error(err)
	}
}

// inspect returns the Windows engine's view of one of the pod's containers.
func (m *member) inspect(name string, container int) (in container.InspectResponse) {
	m.Helper()
	pod, err := watched.Pods().Lister().Pods(m.space).Get(name)
	if err != nil {
		m.Fatal(err)
	}
	id := strings.TrimPrefix(pod.Status.ContainerStatuses[container].ContainerID, "docker://")
	text, err := m.ask(m.Context(), http.MethodGet, "/containers/"+id+"/json", "")
	if err == nil {
		err = json.Unmarshal([]byte(text), &in)
	}
	if err != nil {
		m.Fatalf("%s: %v", name, err)
	}
	return in
}

// event waits for an Event of a pod that contains want.
func (m *member) event(name, want string) {
	m.Helper()
	m.until(3*time.Minute, "the Event of pod "+name, func(context.Context) error {
		list, err := watched.Events().Lister().Events(m.space).List(labels.Everything())
		if err != nil {
			return err
		}
		var said []string
		for _, e := range list {
			if e.InvolvedObject.Name != name {
				continue
			}
			if strings.Contains(e.Message, want) {
				return nil
			}
			said = append(said, e.Message)
		}
		return fmt.Errorf("the Event is %q", said)
	})
}

// hostDoctor runs kubelet.exe's check of the whole host in the background, for some seconds: Wine has neither the feature Containers nor its
// services. judge waits for it and checks its output.
func (m *member) hostDoctor() (judge func()) {
	m.Helper()
	cmd := m.agent("kubelet.exe", []string{"doctor", "--node-ip=" + m.host.Addr.String(), "--cluster-cidr=" + lab.PodCIDR, "--service-cidr=" + lab.ServiceCIDR,
		"--pod-infra-container-image=" + lab.PauseImage, "--kubeconfig=" + rig.WindowsPath(m.host.PKI("kubelet.kubeconfig"))})
	report := make(chan string, 1)
	go func() {
		said, _ := m.Finish(cmd) // it fails because it finds faults
		report <- said.Stdout + said.Stderr
	}()
	return func() { m.doctorSaid(<-report) }
}

func (m *member) doctorSaid(got string) {
	m.Helper()
	for _, want := range []string{"ok     this is Windows Server 20", fmt.Sprintf("10.0.%d.", m.Build), "FAULT  the feature Containers is not installed", "fix: Install-WindowsFeature Containers",
		"ok     Docker ", "of the disk is free at C:\\var\\lib\\kubelet", "ok     the clock agrees with the API server's", "ok     the API server has version v1.36.3", "faults found: "} {
		if !strings.Contains(got, want) {
			m.Errorf("kubelet.exe doctor does not report %q:\n%s", want, got)
		}
	}
	m.Logf("kubelet.exe doctor:\n%s", got)
	m.did("kubelet.exe doctor", "ok")
}

// sizes measures the programs that make builds: the ones under test have coverage counters.
func (m *member) sizes() {
	m.Helper()
	for exe, most := range map[string]int64{"kubelet.exe": 36e6, "proxy.exe": 27e6} {
		cell := "not built: make"
		if info, err := os.Stat(filepath.Join(cluster.Root, "_output/bin/windows/amd64", exe)); err == nil {
			cell = fmt.Sprintf("%.1f MB", float64(info.Size())/1e6)
			if info.Size() > most {
				m.Errorf("%s has %s", exe, cell)
			}
		}
		m.did(fmt.Sprintf("%s: size, at most %d MB", exe, most/1e6), cell)
	}
}
