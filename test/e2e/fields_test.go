package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
)

// unknownClass is the name of a RuntimeClass and of its handler, which no engine here has.
const unknownClass = "winkube-unknown"

// runtimeClass creates a RuntimeClass for the duration of the test.
func (s *space) runtimeClass(name, handler string) {
	s.Helper()
	class := &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Handler: handler}
	if _, err := client.NodeV1().RuntimeClasses().Create(s.Context(), class, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := client.NodeV1().RuntimeClasses().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			s.Error(err)
		}
	})
}

// TestFields starts pods whose fields affect the creation of their containers, and checks the engine's containers and
// the pods' statuses.
func TestFields(t *testing.T) {
	s := newSpace(t)
	node := cluster.Nodes[0]
	s.runtimeClass("e2e-handler", lab.RuntimeHandler)
	strict := v1.SupplementalGroupsPolicyStrict

	class := s.pod("class", node, "sleep")
	class.Spec.RuntimeClassName = new("e2e-handler")
	s.create(class)
	groups := s.pod("groups", node, "sleep")
	groups.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: new(int64(1000)), RunAsGroup: new(int64(7)), SupplementalGroups: []int64{60000}, FSGroup: new(int64(5))}
	s.create(groups)
	few := s.pod("few", node, "sleep")
	few.Spec.SecurityContext = &v1.PodSecurityContext{SupplementalGroups: []int64{60000}, SupplementalGroupsPolicy: &strict}
	s.create(few)
	mounts := s.pod("mounts", node, "sleep")
	mounts.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	mounts.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v", ReadOnly: true, RecursiveReadOnly: new(v1.RecursiveReadOnlyIfPossible)}}
	s.create(mounts)

	for _, container := range s.made(s.ready("class"), node) {
		if container.HostConfig.Runtime != lab.RuntimeHandler {
			t.Errorf("a container of a pod with a RuntimeClass has the runtime %q", container.HostConfig.Runtime)
		}
	}
	for name, want := range map[string]string{"groups": "1000 7 [7 5 60000]", "few": "0 0 [0 60000]"} {
		user := s.ready(name).Status.ContainerStatuses[0].User
		if user == nil || fmt.Sprint(user.Linux.UID, " ", user.Linux.GID, " ", user.Linux.SupplementalGroups) != want {
			t.Errorf("%s: status says %+v, want %s", name, user, want)
		}
	}
	able, err := recursiveReadOnly(t.Context(), node)
	s.must(err)
	want := v1.RecursiveReadOnlyDisabled
	if able {
		want = v1.RecursiveReadOnlyEnabled
	}
	if status := s.ready("mounts").Status.ContainerStatuses[0].VolumeMounts; !slices.ContainsFunc(status, func(m v1.VolumeMountStatus) bool {
		return m.MountPath == "/v" && m.RecursiveReadOnly != nil && *m.RecursiveReadOnly == want
	}) {
		t.Errorf("mounts: %+v", status)
	}
	s.target(node)

	status := s.node(node.Name).Status
	handlers := slices.ContainsFunc(status.RuntimeHandlers, func(h v1.NodeRuntimeHandler) bool { return h.Name == lab.RuntimeHandler })
	if !handlers || status.Features == nil || !*status.Features.SupplementalGroupsPolicy || len(status.DeclaredFeatures) == 0 {
		t.Errorf("the Node reports handlers %+v, features %+v, declared %q", status.RuntimeHandlers, status.Features, status.DeclaredFeatures)
	}
	t.Logf("declared features: %s", strings.Join(status.DeclaredFeatures, ", "))
}

// target adds to a pod an ephemeral container that shares another container's processes.
func (s *space) target(node *lab.Host) {
	pod := s.create(s.pod("target", node, "sleep"))
	s.ready(pod.Name)
	pod = s.get(pod.Name)
	pod.Spec.EphemeralContainers = []v1.EphemeralContainer{{TargetContainerName: "main", EphemeralContainerCommon: v1.EphemeralContainerCommon{
		Name: "debug", Image: lab.SampleImage, Args: []string{"sleep"}, ImagePullPolicy: v1.PullIfNotPresent, TerminationMessagePolicy: v1.TerminationMessageReadFile}}}
	if _, err := client.CoreV1().Pods(s.name).UpdateEphemeralContainers(s.Context(), pod.Name, pod, metav1.UpdateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.eventually(time.Minute, "ephemeral container", func(context.Context) error {
		pod = s.get(pod.Name)
		if list := pod.Status.EphemeralContainerStatuses; len(list) == 0 || list[0].State.Running == nil {
			return fmt.Errorf("%+v", list)
		}
		return nil
	})
	want := "container:" + strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "docker://")
	made := s.made(pod, node)
	if !slices.ContainsFunc(made, func(c lab.Details) bool { return c.HostConfig.PidMode == want }) {
		s.Errorf("no container joins the target's processes (%s): %+v", want, made)
	}
}

func (s *space) node(name string) *v1.Node {
	s.Helper()
	node, err := client.CoreV1().Nodes().Get(s.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return node
}

// made returns the engine's view of a pod: its sandbox and containers.
func (s *space) made(pod *v1.Pod, node *lab.Host) []lab.Details {
	s.Helper()
	list, err := node.Engine().Containers(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	var out []lab.Details
	for _, c := range list {
		if c.Labels["io.kubernetes.pod.uid"] != string(pod.UID) {
			continue
		}
		details, err := node.Engine().Inspect(s.Context(), c.ID)
		if err != nil {
			s.Fatal(err)
		}
		out = append(out, details)
	}
	if len(out) < 2 {
		s.Errorf("the engine has %d containers of pod %s", len(out), pod.Name)
	}
	return out
}
