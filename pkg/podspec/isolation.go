package podspec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// IsolationAnnotation requests a virtual machine for each container of the pod ("hyperv", in upstream until 1.20) or none ("process").
// It counts with the feature gate HyperVContainer alone.
const IsolationAnnotation = "experimental.windows.kubernetes.io/isolation-type"

// The handlers that select an isolation on Windows: Docker's names, and common names on containerd nodes.
var isolations = map[string]string{
	"hyperv": "hyperv", "runhcs-wcow-hypervisor": "hyperv",
	"process": "process", "runhcs-wcow-process": "process",
}

// IsolationHandlers lists them, sorted.
func IsolationHandlers() []string { return slices.Sorted(maps.Keys(isolations)) }

// Isolation is what pod requests on Windows: "hyperv" for a virtual machine per container, "process" for none, "" for the engine's default.
// The annotation counts only if annotated is set, and the handler of the pod's RuntimeClass overrides it. ok is false if the handler is
// unknown.
func Isolation(pod *v1.Pod, handler string, annotated bool) (isolation string, ok bool) {
	if handler != "" {
		isolation, ok = isolations[strings.ToLower(handler)]
		return isolation, ok
	}
	if value := strings.ToLower(pod.Annotations[IsolationAnnotation]); annotated && (value == "hyperv" || value == "process") {
		return value, true
	}
	return "", true
}

// AnnotatedIsolation returns the value of IsolationAnnotation. ok is false without one, or if a RuntimeClass overrides it.
func AnnotatedIsolation(pod *v1.Pod) (value string, ok bool) {
	if pod.Spec.RuntimeClassName != nil && *pod.Spec.RuntimeClassName != "" {
		return "", false
	}
	value, ok = pod.Annotations[IsolationAnnotation]
	return value, ok
}

// CheckIsolation says what is wrong with IsolationAnnotation where the feature gate is on; nil: nothing, or a RuntimeClass overrides it.
func CheckIsolation(pod *v1.Pod) error {
	value, ok := AnnotatedIsolation(pod)
	if !ok {
		return nil
	}
	switch isolation, _ := Isolation(pod, "", true); isolation {
	case "":
		return fmt.Errorf("the annotation %s is %q: want hyperv or process", IsolationAnnotation, value)
	case "hyperv":
		if n := ConcurrentContainers(&pod.Spec); n > 1 {
			return fmt.Errorf("the annotation %s is %q, but the pod has %d containers that run at the same time: containers with Hyper-V isolation share no network, "+
				"so that a pod has one; split the pod, or remove the annotation", IsolationAnnotation, value, n)
		}
	}
	return nil
}
