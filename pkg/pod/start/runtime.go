package start

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// Handler is the handler of the pod's RuntimeClass; "" if it names none. An unavailable class is reported in an Event.
func (r *Resolver) Handler(ctx context.Context, p *v1.Pod) (string, error) {
	if p.Spec.RuntimeClassName == nil || *p.Spec.RuntimeClassName == "" {
		return "", nil
	}
	handler, err := r.parts.Objects.RuntimeHandler(ctx, *p.Spec.RuntimeClassName)
	if _, known := podspec.Isolation(p, handler, false); err == nil && !known && r.cfg.Platform.OS == "windows" {
		err = fmt.Errorf("RuntimeClass %s has handler %q, which does not exist on Windows; want hyperv or process", *p.Spec.RuntimeClassName, handler)
	}
	if err == nil {
		return handler, nil
	}
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	message := fmt.Sprintf("Failed to create pod sandbox: failed to get sandbox runtime: %v", err)
	return "", r.fail(podspec.Reference(p), pod.ReasonSandbox, &pod.StartError{Reason: pod.ReasonSandbox, Message: message, Err: err})
}

// noteIsolation sends an Event if an annotation asks for an isolation that it does not get.
func (r *Resolver) noteIsolation(p *v1.Pod) {
	value, ok := podspec.AnnotatedIsolation(p)
	if !ok || r.cfg.Platform.OS != "windows" || r.cfg.Platform.HyperVContainer {
		return
	}
	r.parts.Recorder.Eventf(podspec.Reference(p), v1.EventTypeWarning, "IsolationIgnored", "The annotation %s %q has no effect: "+
		"start the kubelet with --feature-gates=HyperVContainer=true, or give the pod a RuntimeClass with handler hyperv or process", podspec.IsolationAnnotation, value)
}

// target is the id of the container whose process namespace an ephemeral container joins; "" if the pod's own settings decide.
func target(pod *v1.Pod, container *v1.Container, at pod.Attempt) (string, error) {
	name := podspec.TargetContainer(pod, at.Kind, container.Name)
	if name != "" && at.TargetID == "" {
		return "", fmt.Errorf("unable to find target container %s: it does not run", name)
	}
	return at.TargetID, nil
}

// recursiveReadOnly sets Recursive on the mounts that are read-only including everything mounted below them. mounts has the order of the
// container's volumeMounts.
func recursiveReadOnly(container *v1.Container, mounts []pod.Mount, supported func() bool) error {
	for i := range mounts {
		vm := &container.VolumeMounts[i]
		recursive, err := podspec.RecursivelyReadOnly(vm, supported != nil && supported())
		if err != nil {
			return err
		}
		mounts[i].Recursive = recursive
	}
	return nil
}
