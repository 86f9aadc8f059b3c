package join

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/test/lab"
)

// filePod is a pod that does one thing and exits.
const filePod = `---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {winkube.test/files: "true"}}
spec:
  nodeSelector: {kubernetes.io/hostname: %[2]s}
  restartPolicy: Never
  hostAliases: [{ip: 192.0.2.7, hostnames: [database]}]
  containers:
  - name: app
    image: ` + lab.SampleImage + `
    args: [%[3]s]
    terminationMessagePath: %[4]q
    terminationMessagePolicy: FallbackToLogsOnError
    volumeMounts:
    - {name: conf, mountPath: 'C:\app\app.conf', subPath: app.conf}
    - {name: cache, mountPath: /cache}
    - {name: cache, mountPath: 'C:/scratch/deep', subPath: 'a\b'}
  volumes:
  - {name: conf, configMap: {name: files}}
  - {name: cache, emptyDir: {}}
`

// files lets pods read and write where Windows cannot mount single files, with the paths from the seeds' pages.
func (m *member) files() {
	m.Helper()
	ctx := m.Context()
	text := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: files}\ndata: {app.conf: \"x=1\"}\n"
	for name, one := range map[string][2]string{
		"hosts":     {"cat, /Windows/System32/drivers/etc/hosts", "/dev/termination-log"},
		"subpath":   {"cat, /app/app.conf", "/dev/termination-log"},
		"message":   {"write, /dev/termination-log, to the default path", ""},
		"elsewhere": {"write, /app/logs/end, to a path from the pod", `C:\app\logs\end`},
		"volume":    {"write, /scratch/deep/end, to a volume", "c:/SCRATCH/deep/end"},
		"fallback":  {"cat, /no/such/file", "/dev/termination-log"},
	} {
		text += fmt.Sprintf(filePod, name, m.host.Name, one[0], one[1])
	}
	manifest := filepath.Join(m.TempDir(), "files.yaml")
	if err := os.WriteFile(manifest, []byte(text), 0o644); err != nil {
		m.Fatal(err)
	}
	if _, err := cluster.Kubectl(ctx, "apply", "-n", m.space, "-f", manifest); err != nil {
		m.Fatal(err)
	}
	for name, want := range map[string]string{"hosts": "192.0.2.7\tdatabase", "subpath": "x=1"} {
		m.ended(name, v1.PodSucceeded)
		if out, err := cluster.Kubectl(ctx, "logs", "-n", m.space, name); err != nil || !strings.Contains(out, want) {
			m.Errorf("%s: %q, %v; want %q", name, out, err, want)
		}
	}
	m.did("hosts file, file by subPath", "copied in")
	for name, want := range map[string]string{"message": "to the default path", "elsewhere": "to a path from the pod", "volume": "to a volume"} {
		if got := m.ended(name, v1.PodSucceeded); strings.TrimSpace(got) != want {
			m.Errorf("%s: the message is %q, want %q", name, got, want)
		}
	}
	if got := m.ended("fallback", v1.PodFailed); !strings.Contains(got, "/no/such/file") {
		m.Errorf("the end of the log as message: %q", got)
	}
	m.did("termination message: directory, copied out, volume, log", "ok")
	// identities waits until they are gone, together with its own pods, which have the same label.
	if _, err := cluster.Kubectl(ctx, "delete", "pods", "-n", m.space, "-l", "winkube.test/files=true", "--grace-period=0", "--wait=false"); err != nil {
		m.Error(err)
	}
}

// ended waits until a pod has ended and returns its message.
func (m *member) ended(name string, phase v1.PodPhase) (message string) {
	m.Helper()
	m.until(3*time.Minute, "the end of pod "+name, func(context.Context) error {
		pod, err := watched.Pods().Lister().Pods(m.space).Get(name)
		if err != nil {
			return err
		}
		if pod.Status.Phase != phase || len(pod.Status.ContainerStatuses) == 0 || pod.Status.ContainerStatuses[0].State.Terminated == nil {
			return fmt.Errorf("it is %s: %s %+v", pod.Status.Phase, pod.Status.Message, pod.Status.ContainerStatuses)
		}
		message = pod.Status.ContainerStatuses[0].State.Terminated.Message
		return nil
	})
	return message
}
