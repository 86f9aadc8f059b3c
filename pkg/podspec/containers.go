// Package podspec answers questions about a pod's specification: its containers and their kinds, whether one is restarted after its exit,
// its resources, what an image name means, where its paths are on Windows, and how $(VAR) is expanded.
//
//	v1.Pod -> podspec.X(pod, container) -> one plain value
//
// It is pure and stateless, and does not depend on the engine, the host or other packages of this project.
package podspec

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"iter"

	v1 "k8s.io/api/core/v1"
)

// Containers iterates over all containers of the spec: init, then app, then ephemeral ones, each list in order. It yields pointers into
// pod.
func Containers(pod *v1.Pod) iter.Seq2[Kind, *v1.Container] {
	return func(yield func(Kind, *v1.Container) bool) {
		for i := range pod.Spec.InitContainers {
			if !yield(Init, &pod.Spec.InitContainers[i]) {
				return
			}
		}
		for i := range pod.Spec.Containers {
			if !yield(App, &pod.Spec.Containers[i]) {
				return
			}
		}
		for i := range pod.Spec.EphemeralContainers {
			if !yield(Ephemeral, (*v1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)) {
				return
			}
		}
	}
}

// FindContainer returns the named container; ok is false if the spec has none. Names are unique across the three lists.
func FindContainer(pod *v1.Pod, name string) (kind Kind, container *v1.Container, ok bool) {
	for kind, c := range Containers(pod) {
		if c.Name == name {
			return kind, c, true
		}
	}
	return "", nil, false
}

// Hash changes when a container no longer matches the spec. As in upstream, it covers only name and image: no other change to a running pod
// needs a restart, and new defaults of an API server must not restart anything.
func Hash(container *v1.Container) string {
	data, err := json.Marshal(map[string]string{"image": container.Image, "name": container.Name})
	if err != nil {
		panic(err) // strings always encode
	}
	h := fnv.New32a()
	h.Write(data)
	return fmt.Sprintf("%08x", h.Sum32())
}

// IsTrue reports whether an optional field is set and true.
func IsTrue(b *bool) bool { return b != nil && *b }

// Kind is the list of the PodSpec that a container is in.
type Kind string

// Kinds.
const (
	Init      Kind = "init"
	App       Kind = "app"
	Ephemeral Kind = "ephemeral"
)

// TargetContainer is the targetContainerName of an ephemeral container; "" if all containers share a process namespace.
func TargetContainer(pod *v1.Pod, kind Kind, name string) string {
	if kind != Ephemeral || pod.Spec.HostPID || IsTrue(pod.Spec.ShareProcessNamespace) {
		return ""
	}
	for i := range pod.Spec.EphemeralContainers {
		if c := &pod.Spec.EphemeralContainers[i]; c.Name == name {
			return c.TargetContainerName
		}
	}
	return ""
}

// ConcurrentContainers counts the containers that run at the same time once the pod is up: apps and sidecars.
func ConcurrentContainers(spec *v1.PodSpec) int {
	n := len(spec.Containers)
	for i := range spec.InitContainers {
		if IsSidecar(&spec.InitContainers[i]) {
			n++
		}
	}
	return n
}

// IsSidecar reports whether an init container is restartable: it runs beside the app containers.
func IsSidecar(container *v1.Container) bool {
	return container.RestartPolicy != nil && *container.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// PortContainers are the containers whose ports are the pod's: those that run as long as the pod. The scheduler and admission do not count
// hostPorts of other init containers.
func PortContainers(p *v1.Pod) (out []*v1.Container) {
	for i := range p.Spec.InitContainers {
		if IsSidecar(&p.Spec.InitContainers[i]) {
			out = append(out, &p.Spec.InitContainers[i])
		}
	}
	for i := range p.Spec.Containers {
		out = append(out, &p.Spec.Containers[i])
	}
	return out
}
