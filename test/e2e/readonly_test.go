package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/output"
)

// recursiveReadOnly reports whether the node declares support for recursive read-only mounts: Docker 25 and later.
func recursiveReadOnly(ctx context.Context, node *lab.Host) (bool, error) {
	n, err := client.CoreV1().Nodes().Get(ctx, node.Name, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(n.Status.RuntimeHandlers, func(h v1.NodeRuntimeHandler) bool {
		return h.Name == "" && h.Features != nil && h.Features.RecursiveReadOnlyMounts != nil && *h.Features.RecursiveReadOnlyMounts
	}), nil
}

// A mount below a volume is writable if the volume is read-only, but not if it is recursively read-only.
func TestRecursiveReadOnly(t *testing.T) {
	node := cluster.Nodes[0]
	able, err := recursiveReadOnly(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	if !able {
		t.Skip("the engine is older than Docker 25, which introduced recursively read-only mounts")
	}
	volume := t.TempDir()
	below := filepath.Join(volume, "below")
	if err := os.Mkdir(below, 0o755); err != nil {
		t.Fatal(err)
	}
	if said, err := output.Of(exec.Command("mount", "-t", "tmpfs", "tmpfs", below)); err != nil {
		t.Fatalf("mount: %v: %s", err, said)
	}
	t.Cleanup(func() {
		if said, err := output.Of(exec.Command("umount", below)); err != nil {
			t.Errorf("umount: %v: %s", err, said)
		}
	})
	s := newSpace(t)
	for _, test := range []struct {
		name string
		mode *v1.RecursiveReadOnlyMode
		dir  string
		want string // error of a write; "": it succeeds
	}{
		{"plain", nil, "below/", ""},
		{"plain-itself", nil, "", "read-only file system"},
		{"disabled", new(v1.RecursiveReadOnlyDisabled), "below/", ""},
		{"enabled", new(v1.RecursiveReadOnlyEnabled), "below/", "read-only file system"},
		{"if-possible", new(v1.RecursiveReadOnlyIfPossible), "below/", "read-only file system"},
	} {
		pod := s.pod(test.name, node, "write", "/v/"+test.dir+test.name, "text")
		pod.Spec.RestartPolicy = v1.RestartPolicyNever
		pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: volume}}}}
		pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v", ReadOnly: true, RecursiveReadOnly: test.mode}}
		s.create(pod)
		var ended *v1.ContainerStateTerminated
		var status []v1.VolumeMountStatus
		s.eventually(60*time.Second, "pod "+test.name+" has ended", func(context.Context) error {
			c := s.get(test.name).Status.ContainerStatuses
			if len(c) == 0 || c[0].State.Terminated == nil {
				return fmt.Errorf("%+v", c)
			}
			ended, status = c[0].State.Terminated, c[0].VolumeMounts
			return nil
		})
		log := s.logs(test.name)
		if (ended.ExitCode == 0) != (test.want == "") || !strings.Contains(log, test.want) {
			t.Errorf("%s: exit code %d, %q; want %q", test.name, ended.ExitCode, log, test.want)
		}
		i := slices.IndexFunc(status, func(m v1.VolumeMountStatus) bool { return m.MountPath == "/v" })
		told := i >= 0 && status[i].RecursiveReadOnly != nil && *status[i].RecursiveReadOnly == v1.RecursiveReadOnlyEnabled
		if recursive := test.mode != nil && *test.mode != v1.RecursiveReadOnlyDisabled; told != recursive {
			t.Errorf("%s: the status says %+v, want recursive %t", test.name, status, recursive)
		}
	}
}
