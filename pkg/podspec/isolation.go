package podspec

import (
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// IsolationAnnotation asks for a virtual machine around each container of the pod ("hyperv", upstream had it until 1.20) or for none ("process").
const IsolationAnnotation = "experimental.windows.kubernetes.io/isolation-type"

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
	if value := strings.ToLower(pod.Annotations[IsolationAnnotation]); value == "hyperv" || value == "process" {
		return value, true
	}
	return "", true
}
