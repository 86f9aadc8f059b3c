package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// badPod is a pod that cannot run, and what its user must see.
type badPod struct {
	name string
	make func(*v1.Pod)
	// waiting: accepted reasons of the container's waiting state; reason: of a Failed pod.
	waiting []string
	reason  string
	// event and says: reason and part of the message of a required Event; "": the state suffices.
	event, says string
}

func badPods(node string) []badPod {
	main := func(pod *v1.Pod) *v1.Container { return &pod.Spec.Containers[0] }
	mount := func(pod *v1.Pod, path string, source v1.VolumeSource) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: "v", VolumeSource: source})
		main(pod).VolumeMounts = append(main(pod).VolumeMounts, v1.VolumeMount{Name: "v", MountPath: path})
	}
	directory := v1.HostPathDirectory
	no := false
	start := []string{"RunContainerError", "CreateContainerError", "StartError", "CrashLoopBackOff"}
	return []badPod{
		{"image-missing", func(pod *v1.Pod) { main(pod).Image = "winkube/none:1" },
			[]string{"ErrImagePull", "ImagePullBackOff"}, "", "Failed", "winkube/none:1"},
		{"image-never", func(pod *v1.Pod) { main(pod).Image, main(pod).ImagePullPolicy = "winkube/none:1", v1.PullNever },
			[]string{"ErrImageNeverPull"}, "", "ErrImageNeverPull", "winkube/none:1"},
		{"image-name", func(pod *v1.Pod) { main(pod).Image = "Not A/Name" },
			[]string{"InvalidImageName"}, "", "InspectFailed", "Not A/Name"},
		{"env-secret-missing", func(pod *v1.Pod) {
			main(pod).Env = []v1.EnvVar{{Name: "A", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{
				LocalObjectReference: v1.LocalObjectReference{Name: "nope"}, Key: "k"}}}}
		}, []string{"CreateContainerConfigError"}, "", "Failed", `secret "nope" not found`},
		{"volume-secret-missing", func(pod *v1.Pod) {
			mount(pod, "/v", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "nope"}})
		}, []string{"ContainerCreating"}, "", "FailedMount", `secret "nope" not found`},
		{"volume-configmap-missing", func(pod *v1.Pod) {
			mount(pod, "/v", v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: "nope"}}})
		}, []string{"ContainerCreating"}, "", "FailedMount", `configmap "nope" not found`},
		{"hostpath-missing", func(pod *v1.Pod) {
			mount(pod, "/v", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/no/such/directory", Type: &directory}})
		}, []string{"ContainerCreating"}, "", "FailedMount", "hostPath type check failed"},
		{"mount-path-is-a-file", func(pod *v1.Pod) {
			mount(pod, "/sample", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})
		}, start, "", "Failed", "/sample"},
		{"volume-kind", func(pod *v1.Pod) {
			mount(pod, "/v", v1.VolumeSource{Glusterfs: &v1.GlusterfsVolumeSource{EndpointsName: "storage", Path: "a"}})
		}, []string{"ContainerCreating"}, "", "FailedMount", "volume kind glusterfs is not supported"},
		{"volume-iscsi", func(pod *v1.Pod) { // on a node with or without iscsiadm
			mount(pod, "/v", v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{TargetPortal: "10.96.255.254", IQN: "iqn.2001-04.com.example:storage"}})
		}, []string{"ContainerCreating"}, "", "FailedMount", "10.96.255.254:iqn.2001-04.com.example:storage:0"},
		{"host-users", func(pod *v1.Pod) { pod.Spec.HostUsers = &no },
			[]string{"ContainerCreating"}, "", "FailedCreatePodSandBox", "hostUsers"},
		{"runtime-class", func(pod *v1.Pod) { pod.Spec.RuntimeClassName = new(unknownClass) },
			[]string{"ContainerCreating"}, "", "FailedCreatePodSandBox", `handler "winkube-unknown" is configured: the engine has`},
		{"recursive-read-only", func(pod *v1.Pod) {
			mount(pod, "/v", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})
			main(pod).VolumeMounts[0].ReadOnly, main(pod).VolumeMounts[0].RecursiveReadOnly = true, new(v1.RecursiveReadOnlyEnabled)
		}, []string{"CreateContainerConfigError"}, "", "Failed", "not supported by the runtime"},
		{"volume-csi", func(pod *v1.Pod) {
			mount(pod, "/v", v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "driver.example"}})
		}, []string{"ContainerCreating"}, "", "FailedMount", "csi"},
		{"sysctl", func(pod *v1.Pod) {
			pod.Spec.SecurityContext = &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: "kernel.msgmax", Value: "10000"}}}
		}, nil, "SysctlForbidden", "", ""},
		{"apparmor", func(pod *v1.Pod) {
			pod.Spec.SecurityContext = &v1.PodSecurityContext{AppArmorProfile: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault}}
		}, nil, "AppArmor", "", ""},
		{"no-such-command", func(pod *v1.Pod) { main(pod).Command = []string{"/nope"} },
			start, "", "Failed", "/nope"},
		{"other-system", func(pod *v1.Pod) { pod.Spec.NodeName, pod.Spec.OS = node, &v1.PodOS{Name: v1.Windows} },
			nil, "PodOSNotSupported", "", ""},
		{"too-big", func(pod *v1.Pod) {
			pod.Spec.NodeName = node
			main(pod).Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1000")}
		}, nil, "OutOfcpu", "", ""},
		{"other-node", func(pod *v1.Pod) {
			pod.Spec.NodeName, pod.Spec.NodeSelector = node, map[string]string{"no": "such"}
		}, nil, "NodeAffinity", "", ""},
	}
}

// TestBadPods starts pods that cannot run. Each must show upstream's state, reason and event; other pods must not be
// affected.
func TestBadPods(t *testing.T) {
	s := newSpace(t)
	node := cluster.Nodes[0]
	s.create(s.pod("good", node, "serve", "8080"))
	before := s.ready("good").Status.ContainerStatuses
	kubelet, _ := node.Process("kubelet").PID()

	s.runtimeClass(unknownClass, unknownClass)
	bad := badPods(node.Name)
	if able, err := recursiveReadOnly(t.Context(), node); err != nil || able { // then the pod can run
		s.must(err)
		bad = slices.DeleteFunc(bad, func(b badPod) bool { return b.name == "recursive-read-only" })
	}
	for _, b := range bad {
		pod := s.pod(b.name, node, "sleep")
		b.make(pod)
		s.create(pod)
	}
	begin := time.Now()
	s.create(s.pod("good-after", node, "sleep"))
	s.ready("good-after")
	t.Logf("with %d pods that cannot run, a good pod is Ready after %.1f s", len(bad), time.Since(begin).Seconds())

	for _, b := range bad {
		t.Run(b.name, func(t *testing.T) {
			sub := &space{T: t, name: s.name}
			var state string
			sub.eventually(2*time.Minute, "state", func(context.Context) error {
				var ok bool
				if state, ok = b.stateOf(sub.get(b.name)); !ok {
					return fmt.Errorf("got %s, want %v %s", state, b.waiting, b.reason)
				}
				return nil
			})
			var message string
			if b.event != "" {
				message = sub.told(b.name, b.event, b.says)
			}
			t.Logf("%s; event %s: %s", state, b.event, message)
		})
	}
	if now, _ := node.Process("kubelet").PID(); now != kubelet {
		t.Errorf("the kubelet died: pid %d, was %d", now, kubelet)
	}
	after := s.ready("good").Status.ContainerStatuses
	if after[0].ContainerID != before[0].ContainerID {
		t.Errorf("the good pod was restarted: %v, was %v", after, before)
	}
}

func (b badPod) stateOf(pod *v1.Pod) (string, bool) {
	if b.reason != "" {
		return fmt.Sprintf("%s %s: %s", pod.Status.Phase, pod.Status.Reason, pod.Status.Message),
			pod.Status.Phase == v1.PodFailed && pod.Status.Reason == b.reason
	}
	state := string(pod.Status.Phase)
	for _, status := range pod.Status.ContainerStatuses {
		if waiting := status.State.Waiting; waiting != nil {
			return fmt.Sprintf("%s, waiting %s: %s", state, waiting.Reason, waiting.Message), slices.Contains(b.waiting, waiting.Reason)
		}
		state += fmt.Sprintf(" %+v", status.State)
	}
	return state, false
}

// told waits for an Event of a pod, which may be written later than the pod's status, and returns its message.
func (s *space) told(pod, reason, says string) (message string) {
	s.Helper()
	s.eventually(time.Minute, "event "+reason+" of "+pod, func(ctx context.Context) (err error) {
		message, err = s.event(ctx, pod, reason, says)
		return err
	})
	return message
}

// event finds an Event of a pod by reason and a part of its message.
func (s *space) event(ctx context.Context, pod, reason, says string) (string, error) {
	list, err := client.CoreV1().Events(s.name).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
	if err != nil {
		return "", err
	}
	var seen []string
	for _, event := range list.Items {
		if event.Reason == reason && strings.Contains(event.Message, says) {
			return event.Message, nil
		}
		seen = append(seen, event.Reason+": "+event.Message)
	}
	return "", fmt.Errorf("no event %s with %q, only:\n  %s", reason, says, strings.Join(seen, "\n  "))
}
