package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/winkube/winkube/test/lab"
)

// cast has the pods that run while the agent is killed: every kind of volume, hooks, init containers, sidecars, probes
// and restarts.
type cast struct {
	*space
	host  *lab.Host
	notes string // a directory of the host in which containers and hooks write lines, one file per pod and subject
	data  string // a directory of the host behind the PersistentVolume
}

// role is one kind of pod.
type role struct {
	name   string
	change func(c *cast, pod *v1.Pod)
	// ends: its container exits by itself; succeeds: so does the pod, permanently.
	ends, succeeds bool
	// Hooks of its container main.
	postStart, preStop bool
	sleeps             int64 // seconds of its preStop hook, a sleep
}

// endsByItself reports whether a pod's container exits by itself.
func endsByItself(pod, container string) bool {
	for _, r := range roles {
		if r.ends && container == "main" && strings.HasPrefix(pod, r.name+"-") {
			return true
		}
	}
	return false
}

var roles = []role{
	{name: "plain", change: func(*cast, *v1.Pod) {}},
	{name: "volumes", change: (*cast).withVolumes},
	{name: "claims", change: (*cast).withClaim},
	{name: "inits", change: (*cast).withInits},
	{name: "hooks", change: (*cast).withHooks, postStart: true, preStop: true},
	{name: "sleepy", change: (*cast).withSleep, sleeps: 2},
	{name: "probed", change: (*cast).withProbes},
	{name: "crashes", change: (*cast).crashing, ends: true},
	{name: "job", change: (*cast).once, ends: true, succeeds: true},
}

func newCast(s *space, host *lab.Host) *cast {
	c := &cast{space: s, host: host, notes: host.Dir("notes-" + s.name), data: host.Dir("data-" + s.name)}
	for _, dir := range []string{c.notes, c.data} {
		s.must(os.MkdirAll(dir, 0o755))
		s.Cleanup(func() { os.RemoveAll(dir) })
	}
	ctx := context.Background()
	core := client.CoreV1()
	_, err := core.ConfigMaps(s.name).Create(ctx, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "chaos"}, Data: map[string]string{"key": "of the map"}}, metav1.CreateOptions{})
	s.must(err)
	_, err = core.Secrets(s.name).Create(ctx, &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "chaos"}, StringData: map[string]string{"key": "of the secret"}}, metav1.CreateOptions{})
	s.must(err)
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Mi")}
	class := ""
	_, err = core.PersistentVolumes().Create(ctx, &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Spec: v1.PersistentVolumeSpec{
			Capacity: size, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}, PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: c.data}},
			ClaimRef:               &v1.ObjectReference{Namespace: s.name, Name: "chaos"},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	s.Cleanup(func() {
		if err := core.PersistentVolumes().Delete(ctx, s.name, metav1.DeleteOptions{}); err != nil {
			s.Error(err)
		}
	})
	_, err = core.PersistentVolumeClaims(s.name).Create(ctx, &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "chaos"},
		Spec: v1.PersistentVolumeClaimSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}, StorageClassName: &class, VolumeName: s.name,
			Resources: v1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	return c
}

// play returns a pod of a role; its name begins with the role's.
func (c *cast) play(r role, suffix string) *v1.Pod {
	pod := c.pod(r.name+"-"+suffix, c.host, "sleep")
	c.mount(pod, "/notes", "", v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: c.notes}})
	r.change(c, pod)
	return pod
}

// mount mounts a new volume in all of the pod's current containers.
func (c *cast) mount(pod *v1.Pod, path, subPath string, source v1.VolumeSource) {
	name := fmt.Sprintf("v%d", len(pod.Spec.Volumes))
	pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: source})
	main := &pod.Spec.Containers[0]
	main.VolumeMounts = append(main.VolumeMounts, v1.VolumeMount{Name: name, MountPath: path, SubPath: subPath})
}

func sample(args ...string) *v1.ExecAction {
	return &v1.ExecAction{Command: append([]string{"/sample"}, args...)}
}

// note returns a command that adds a line to the pod's notes on a subject.
func note(pod *v1.Pod, subject string) *v1.ExecAction {
	return sample("append", "/notes/"+pod.Name+"."+subject, subject)
}

// noted returns the number of lines.
func (c *cast) noted(pod *v1.Pod, subject string) int {
	data, _ := os.ReadFile(filepath.Join(c.notes, pod.Name+"."+subject))
	return strings.Count(string(data), "\n")
}

// readsAll returns a readiness probe that reads files: a pod only becomes Ready if its volumes are correct.
func readsAll(pod *v1.Pod, files ...string) {
	pod.Spec.Containers[0].ReadinessProbe = &v1.Probe{
		ProbeHandler: v1.ProbeHandler{Exec: sample(append([]string{"cat"}, files...)...)}, PeriodSeconds: 2, TimeoutSeconds: 10,
	}
}

func (c *cast) withVolumes(pod *v1.Pod) {
	optional := false
	seconds := int64(600)
	name := v1.LocalObjectReference{Name: "chaos"}
	c.mount(pod, "/memory", "", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}})
	c.mount(pod, "/empty", "a/b", v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}})
	c.mount(pod, "/map", "", v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: name}})
	c.mount(pod, "/one/key", "key", v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: name}})
	c.mount(pod, "/secret", "", v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "chaos"}})
	c.mount(pod, "/all", "", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
		{Secret: &v1.SecretProjection{LocalObjectReference: name, Optional: &optional}},
		{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &seconds}},
		{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{{Path: "name", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}},
	}}})
	readsAll(pod, "/map/key", "/one/key", "/secret/key", "/all/key", "/all/token", "/all/name", "/etc/hosts", "/etc/resolv.conf")
	pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{Exec: sample("shell", "-c", "write /memory/f x; write /empty/f x")}}
}

func (c *cast) withClaim(pod *v1.Pod) {
	claim := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "chaos"}}
	c.mount(pod, "/data", "", claim)
	c.mount(pod, "/mine", pod.Name, claim)
	pod.Spec.Containers[0].Args = []string{"shell", "-c", "write /mine/f x; sleep"}
	readsAll(pod, "/mine/f", "/data/"+pod.Name+"/f")
}

// withInits adds two init containers that note their end, and a sidecar that starts between them.
func (c *cast) withInits(pod *v1.Pod) {
	always := v1.ContainerRestartPolicyAlways
	init := func(name, script string) v1.Container {
		return v1.Container{Name: name, Image: lab.SampleImage, Args: []string{"shell", "-c", script}, VolumeMounts: pod.Spec.Containers[0].VolumeMounts}
	}
	side := init("side", "sleep")
	side.RestartPolicy = &always
	side.StartupProbe = &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: sample("hostname")}, PeriodSeconds: 1, TimeoutSeconds: 10, FailureThreshold: 30}
	file := "/notes/" + pod.Name + "."
	pod.Spec.InitContainers = []v1.Container{
		init("init-1", "sleep 300ms; append "+file+"init-1 done"), side, init("init-2", "append "+file+"init-2 done; sleep 300ms"),
	}
}

func (c *cast) withHooks(pod *v1.Pod) {
	pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{Exec: note(pod, "postStart")}, PreStop: &v1.LifecycleHandler{Exec: note(pod, "preStop")}}
	c.grace(pod, 10)
}

func (c *cast) withSleep(pod *v1.Pod) {
	pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{
		PostStart: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 1}}, PreStop: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 2}},
	}
	c.grace(pod, 10)
}

func (c *cast) grace(pod *v1.Pod, seconds int64) { pod.Spec.TerminationGracePeriodSeconds = &seconds }

// withProbes adds one probe of each kind, with long commands: an agent that dies leaves them running.
func (c *cast) withProbes(pod *v1.Pod) {
	main := &pod.Spec.Containers[0]
	main.Args = []string{"serve", "8080"}
	probe := func(handler v1.ProbeHandler) *v1.Probe {
		return &v1.Probe{ProbeHandler: handler, PeriodSeconds: 1, TimeoutSeconds: 10, FailureThreshold: 30}
	}
	main.StartupProbe = probe(v1.ProbeHandler{Exec: sample("hostname")})
	main.LivenessProbe = probe(v1.ProbeHandler{Exec: sample("sleep", "500ms")})
	main.ReadinessProbe = probe(v1.ProbeHandler{HTTPGet: httpGet("/healthz", 8080)})
	// The second container's probe never exits by itself: after each timeout it must be killed.
	pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{
		Name: "hung", Image: lab.SampleImage, Args: []string{"sleep"},
		LivenessProbe: &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: sample("sleep", "1h")}, PeriodSeconds: 1, TimeoutSeconds: 1, FailureThreshold: 1000},
	})
}

// crashing exits with code 1 soon after each start.
func (c *cast) crashing(pod *v1.Pod) {
	pod.Spec.Containers[0].Args = []string{"shell", "-c", "append /notes/" + pod.Name + ".run x; sleep 500ms; exit 1"}
}

// once runs to completion and is never restarted.
func (c *cast) once(pod *v1.Pod) {
	pod.Spec.RestartPolicy = v1.RestartPolicyNever
	pod.Spec.Containers[0].Args = []string{"shell", "-c", "append /notes/" + pod.Name + ".run x; sleep 500ms"}
}

func httpGet(path string, port int) *v1.HTTPGetAction {
	return &v1.HTTPGetAction{Path: path, Port: intstr.FromInt(port)}
}
