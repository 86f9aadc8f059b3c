// Package podspec answers questions about a pod's specification: which containers it has and of which kind, whether one is started again
// after its end, what it may use, which image a name means, where its paths lie on Windows, and how $(VAR) in it is replaced.
//
//	v1.Pod -> podspec.X(pod, container) -> one plain value
//
// It is pure, keeps nothing and knows no engine, no host and no other package of ours.
package podspec

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"iter"

	v1 "k8s.io/api/core/v1"
)

// Containers goes through all containers of the spec: init, then app, then ephemeral ones, each list in order. What it yields belongs
// to pod.
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

// FindContainer returns the container of that name; ok false: the spec has none. Names are unique over all three lists.
func FindContainer(pod *v1.Pod, name string) (kind Kind, container *v1.Container, ok bool) {
	for kind, c := range Containers(pod) {
		if c.Name == name {
			return kind, c, true
		}
	}
	return "", nil, false
}

// Hash changes when a container is no longer what the spec wants. Only name and image count, as upstream: nothing else of a running
// pod's container may change in a way that needs a restart, and new defaults of an API server must not restart anything.
func Hash(container *v1.Container) string {
	data, err := json.Marshal(map[string]string{"image": container.Image, "name": container.Name})
	if err != nil {
		panic(err) // strings always encode
	}
	h := fnv.New32a()
	h.Write(data)
	return fmt.Sprintf("%08x", h.Sum32())
}

// IsTrue says whether an optional field is set and true.
func IsTrue(b *bool) bool { return b != nil && *b }

// Kind is the list of the PodSpec in which a container stands.
type Kind string

// Kinds.
const (
	Init      Kind = "init"
	App       Kind = "app"
	Ephemeral Kind = "ephemeral"
)

// TargetContainer is the targetContainerName of an ephemeral container, as far as it means anything: not where all share one namespace.
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

// ConcurrentContainers counts the containers that run side by side once the pod is up: apps and restartable init containers.
func ConcurrentContainers(spec *v1.PodSpec) int {
	n := len(spec.Containers)
	for i := range spec.InitContainers {
		if IsSidecar(&spec.InitContainers[i]) {
			n++
		}
	}
	return n
}

// IsSidecar says whether an init container is restartable: it runs beside the app containers.
func IsSidecar(container *v1.Container) bool {
	return container.RestartPolicy != nil && *container.RestartPolicy == v1.ContainerRestartPolicyAlways
}

// PortContainers are the containers whose ports are the pod's: those that run as long as it does. An init container that ends has none: neither
// the scheduler nor admission counts its hostPorts.
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
