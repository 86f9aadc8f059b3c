package pod

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Handler is the handler of the pod's RuntimeClass, "" when it names none. A class that cannot be had is told by an Event.
func (r *Resolver) Handler(ctx context.Context, pod *v1.Pod) (string, error) {
	if pod.Spec.RuntimeClassName == nil || *pod.Spec.RuntimeClassName == "" {
		return "", nil
	}
	handler, err := r.parts.Objects.RuntimeHandler(ctx, *pod.Spec.RuntimeClassName)
	if _, known := Isolation(pod, handler); err == nil && !known && r.cfg.Platform.OS == "windows" {
		err = fmt.Errorf("RuntimeClass %s has handler %q, which means nothing on Windows; want hyperv or process", *pod.Spec.RuntimeClassName, handler)
	}
	if err == nil {
		return handler, nil
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	message := fmt.Sprintf("Failed to create pod sandbox: failed to get sandbox runtime: %v", err)
	return "", r.fail(podRef(pod), reasonSandbox, &StartError{Reason: reasonSandbox, Message: message, Err: err})
}

// The handlers that choose an isolation on Windows: Docker's names, and those that containerd's nodes are commonly given.
var isolations = map[string]string{
	"hyperv": "hyperv", "runhcs-wcow-hypervisor": "hyperv",
	"process": "process", "runhcs-wcow-process": "process",
}

// IsolationHandlers lists them.
func IsolationHandlers() []string { return slices.Sorted(maps.Keys(isolations)) }

// Isolation is what pod asks for on Windows: "hyperv" for a virtual machine around each container, "process" for none, "" for the
// engine's default. The handler of its RuntimeClass comes before the annotation. ok false: there is no such handler.
func Isolation(pod *v1.Pod, handler string) (isolation string, ok bool) {
	if handler != "" {
		isolation, ok = isolations[strings.ToLower(handler)]
		return isolation, ok
	}
	if value := strings.ToLower(pod.Annotations[isolationAnnotation]); value == "hyperv" || value == "process" {
		return value, true
	}
	return "", true
}

// target is the id of the container whose process namespace an ephemeral container joins; "" where the pod's own arrangement decides.
func target(pod *v1.Pod, container *v1.Container, at Attempt) (string, error) {
	name := targetName(pod, at.Kind, container.Name)
	if name != "" && at.TargetID == "" {
		return "", fmt.Errorf("unable to find target container %s: it does not run", name)
	}
	return at.TargetID, nil
}

// targetName is the targetContainerName of an ephemeral container, as far as it means anything: not where all share one namespace.
func targetName(pod *v1.Pod, kind Kind, name string) string {
	if kind != Ephemeral || pod.Spec.HostPID || isTrue(pod.Spec.ShareProcessNamespace) {
		return ""
	}
	for i := range pod.Spec.EphemeralContainers {
		if c := &pod.Spec.EphemeralContainers[i]; c.Name == name {
			return c.TargetContainerName
		}
	}
	return ""
}

// recursiveReadOnly marks those of mounts, which stand in the order of the container's volumeMounts, that are to be read-only with all
// that is mounted below them.
func recursiveReadOnly(container *v1.Container, mounts []Mount, supported func() bool) error {
	for i := range mounts {
		vm := &container.VolumeMounts[i]
		recursive, err := recursively(vm, supported != nil && supported())
		if err != nil {
			return err
		}
		mounts[i].Recursive = recursive
	}
	return nil
}

// recursively says whether a mount is read-only recursively (KEP-3857), with upstream's words for why it cannot be.
func recursively(vm *v1.VolumeMount, supported bool) (bool, error) {
	if vm.RecursiveReadOnly == nil || *vm.RecursiveReadOnly == v1.RecursiveReadOnlyDisabled {
		return false, nil
	}
	fail := func(format string, args ...any) (bool, error) {
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is "+format, append([]any{vm.Name}, args...)...)
	}
	switch {
	case !vm.ReadOnly:
		return fail("not read-only")
	case vm.MountPropagation != nil && *vm.MountPropagation != v1.MountPropagationNone:
		return fail("not compatible with propagation %q", *vm.MountPropagation)
	case *vm.RecursiveReadOnly == v1.RecursiveReadOnlyIfPossible:
		return supported, nil
	case *vm.RecursiveReadOnly != v1.RecursiveReadOnlyEnabled:
		return false, fmt.Errorf("unknown recursive read-only mode %q", *vm.RecursiveReadOnly)
	case !supported:
		return fail("not supported by the runtime (it takes engine API 1.44 and kernel 5.12); IfPossible would do without")
	}
	return true, nil
}
