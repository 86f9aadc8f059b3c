package join

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
)

// featurePods are a pod of two containers, one with a host pipe, and two pods whose mounts Windows would interpret differently.
const featurePods = `---
apiVersion: v1
kind: Pod
metadata: {name: two, labels: {winkube.test/files: "true"}}
spec:
  nodeSelector: {kubernetes.io/hostname: %[1]s}
  restartPolicy: Never
  containers:
  - {name: a, image: ` + lab.SampleImage + `, args: [hostname]}
  - {name: b, image: ` + lab.SampleImage + `, args: [hostname]}
---
apiVersion: v1
kind: Pod
metadata: {name: pipe, labels: {winkube.test/files: "true"}}
spec:
  nodeSelector: {kubernetes.io/hostname: %[1]s}
  restartPolicy: Never
  containers:
  - {name: app, image: ` + lab.SampleImage + `, args: [hostname], volumeMounts: [{name: v, mountPath: '\\.\pipe\docker_engine'}]}
  volumes: [{name: v, hostPath: {path: '\\.\pipe\docker_engine'}}]
---
apiVersion: v1
kind: Pod
metadata: {name: reserved, labels: {winkube.test/files: "true"}}
spec:
  nodeSelector: {kubernetes.io/hostname: %[1]s}
  restartPolicy: Never
  containers:
  - {name: app, image: ` + lab.SampleImage + `, args: [hostname], volumeMounts: [{name: v, mountPath: 'C:\data\NUL.txt'}]}
  volumes: [{name: v, emptyDir: {}}]
---
apiVersion: v1
kind: Pod
metadata: {name: same, labels: {winkube.test/files: "true"}}
spec:
  nodeSelector: {kubernetes.io/hostname: %[1]s}
  restartPolicy: Never
  containers:
  - {name: app, image: ` + lab.SampleImage + `, args: [hostname], volumeMounts: [{name: v, mountPath: 'C:\Data'}, {name: w, mountPath: 'c:/DATA'}]}
  volumes: [{name: v, emptyDir: {}}, {name: w, emptyDir: {}}]
`

// sharedNetworks is the first build whose containers can join another's network and have pipes: version 1709.
const sharedNetworks = 16299

// features runs pods for the differences between Windows Servers, and for names with another meaning on Windows. identities waits
// until they end.
func (m *member) features() {
	m.Helper()
	manifest := filepath.Join(m.TempDir(), "features.yaml")
	if err := os.WriteFile(manifest, fmt.Appendf(nil, featurePods, m.host.Name), 0o644); err != nil {
		m.Fatal(err)
	}
	if _, err := cluster.Kubectl(m.Context(), "apply", "-n", m.space, "-f", manifest); err != nil {
		m.Fatal(err)
	}
	if m.Build < sharedNetworks {
		m.event("two", "the pod has 2 containers that run at the same time")
		m.failed("two")
		m.did("pod of two containers", "Failed, Event")
		m.event("pipe", "from Windows Server version 1709")
		m.did("pipe of the host", "Event")
	} else {
		m.ended("two", v1.PodSucceeded)
		owner := m.inspect("two", 0).HostConfig.NetworkMode.ConnectedContainer()
		if other := m.inspect("two", 1).HostConfig.NetworkMode.ConnectedContainer(); owner == "" || other != owner {
			m.Errorf("the containers have the networks of %q and %q", owner, other)
		}
		m.did("pod of two containers", "network shared")
		m.ended("pipe", v1.PodSucceeded)
		if binds := m.inspect("pipe", 0).HostConfig.Binds; !slices.Contains(binds, `\\.\pipe\docker_engine:\\.\pipe\docker_engine`) {
			m.Errorf("the mounts are %q", binds)
		}
		m.did("pipe of the host", "mounted")
	}
	m.event("reserved", "name of a device")
	m.event("same", "are the same on Windows")
	m.did("name of a device, one place in two spellings", "Events")
}

// failed waits until a pod was refused with a reason.
func (m *member) failed(name string) {
	m.Helper()
	m.until(3*time.Minute, "the refusal of pod "+name, func(context.Context) error {
		pod, err := watched.Pods().Lister().Pods(m.space).Get(name)
		if err == nil && (pod.Status.Phase != v1.PodFailed || pod.Status.Reason == "" || len(pod.Status.ContainerStatuses) > 0 && pod.Status.ContainerStatuses[0].ContainerID != "") {
			err = fmt.Errorf("it is %+v", pod.Status)
		}
		return err
	})
}

// specsKey is where engines before 19.03 read credential specs.
const specsKey = `HKEY_LOCAL_MACHINE\SOFTWARE\Microsoft\Windows NT\CurrentVersion\Virtualization\Containers\CredentialSpecs`

// gmsaSpec is the pods' credential spec.
const gmsaSpec = `{"CmsPlugins":["ActiveDirectory"]}`

// serveRegistry sets the registry as a kubelet leaves it that is killed while a container starts, and lets the engine read credential specs from
// it.
func (m *member) serveRegistry() {
	m.Helper()
	for _, name := range []string{"winkube_" + m.host.Name + "_left", "contoso"} {
		if err := m.SetRegistry(m.Context(), specsKey, name, gmsaSpec); err != nil {
			m.Fatal(err)
		}
	}
	socket := m.host.RunDir("registry.sock")
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.Fatal(err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		m.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got, err := m.Registry(r.Context(), specsKey, strings.TrimPrefix(r.URL.Path, "/")); err != nil || got != gmsaSpec {
			http.Error(w, fmt.Sprintf("%q, %v", got, err), http.StatusNotFound)
		}
	})}
	go func() { _ = server.Serve(listener) }()
	m.Cleanup(func() { _ = server.Close() })
}

// specsGone requires that none of our credential specs is in the registry, and that the administrator's remains.
func (m *member) specsGone() {
	m.Helper()
	m.until(time.Minute, "a registry without our credential specs", func(ctx context.Context) error {
		out, err := m.Prefix.Run(ctx, "reg.exe", "query", specsKey)
		if err == nil && (strings.Contains(out, "winkube_") || !strings.Contains(out, "contoso")) {
			err = errors.New(out)
		}
		return err
	})
}

// reserves checks the memory reserved for Windows. The kubelet has ended: its log is complete.
func (m *member) reserves() {
	m.Helper()
	node, err := client.CoreV1().Nodes().Get(m.Context(), m.host.Name, metav1.GetOptions{})
	if err != nil {
		m.Fatal(err)
	}
	if left := node.Status.Capacity.Memory().Value() - node.Status.Allocatable.Memory().Value(); left != 2<<30 {
		m.Errorf("%d bytes of memory are kept for Windows, want 2 GiB", left)
	}
	if !strings.Contains(m.kubelet.Log(), `"Reserving memory for Windows; set --system-reserved=memory=... to change it" memory="2Gi"`) {
		m.Error("the log does not say how much memory is kept for Windows")
	}
	m.did("2 GiB of memory reserved, and said", "ok")
}

// awaitsDocker lets the services wait for Docker's service, which exists and does not run. When it is deleted they
// continue.
func (m *member) awaitsDocker(start func()) {
	m.Helper()
	if _, err := m.Prefix.Run(m.Context(), "sc.exe", "create", "docker", "binpath=", `C:\k\dockerd.exe`, "start=", "demand"); err != nil {
		m.Fatal(err)
	}
	start()
	for _, one := range services {
		m.served(time.Minute, one.name+" waits for docker", func(context.Context) error {
			text, err := os.ReadFile(m.Path(`C:\var\log\` + one.name + `\` + one.name + ".log"))
			if err == nil && !strings.Contains(string(text), `"Waiting for services" services="docker (stopped)"`) {
				err = fmt.Errorf("its log is %s", text)
			}
			return err
		})
	}
	if _, err := m.Prefix.Run(m.Context(), "sc.exe", "delete", "docker"); err != nil {
		m.Fatal(err)
	}
	m.did("services wait for docker", "ok")
}
