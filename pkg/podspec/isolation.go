package podspec

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// IsolationAnnotation requests a virtual machine for each container of the pod ("hyperv", in upstream until 1.20) or none ("process").
const IsolationAnnotation = "experimental.windows.kubernetes.io/isolation-type"

// The handlers that select an isolation on Windows: Docker's names, and common names on containerd nodes.
var isolations = map[string]string{
	"hyperv": "hyperv", "runhcs-wcow-hypervisor": "hyperv",
	"process": "process", "runhcs-wcow-process": "process",
}

// IsolationHandlers lists them, sorted.
func IsolationHandlers() []string { return slices.Sorted(maps.Keys(isolations)) }

// Isolation is what pod requests on Windows: "hyperv" for a virtual machine per container, "process" for none, "" for the engine's default.
// The handler of its RuntimeClass overrides the annotation. ok is false if the handler is unknown.
func Isolation(pod *v1.Pod, handler string) (isolation string, ok bool) {
	if handler != "" {
		isolation, ok = isolations[strings.ToLower(handler)]
		return isolation, ok
	}
	if value := strings.ToLower(pod.Annotations[IsolationAnnotation]); value == "hyperv" || value == "process" {
		return value, true
	}
	return "", true
}
