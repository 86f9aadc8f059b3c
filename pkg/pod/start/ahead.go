package start

import (
	"context"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// Ahead is Container for a sandbox that has no addresses yet: call Addressed when it has. It returns nil without an error if the inputs depend on
// the addresses, or the image would have to be pulled: Container has to be called later. Errors are as for Container.
func (r *Resolver) Ahead(ctx context.Context, p *v1.Pod, container *v1.Container, at pod.Attempt) (*pod.Inputs, error) {
	if r.cfg.Platform.OS == "windows" || p.Spec.HostNetwork || at.SandboxID == "" || needsAddresses(container) || !r.local(ctx, container) {
		return nil, nil
	}
	return r.Container(ctx, p, container, at)
}

// Addressed brings what Ahead did up to date with the addresses of at.
func (r *Resolver) Addressed(p *v1.Pod, at pod.Attempt) error {
	hosts, err := r.hosts(p, at)
	if err != nil {
		return err
	}
	_, err = r.writeFile(p, "etc-hosts", "/etc/hosts", hosts)
	return err
}

// needsAddresses says whether the pod's addresses are in the container's environment.
func needsAddresses(container *v1.Container) bool {
	for i := range container.Env {
		if from := container.Env[i].ValueFrom; from != nil && from.FieldRef != nil && strings.HasPrefix(from.FieldRef.FieldPath, "status.podIP") {
			return true
		}
	}
	return false
}

// local says whether the container's image is here and need not be pulled.
func (r *Resolver) local(ctx context.Context, container *v1.Container) bool {
	name, err := podspec.ParseImage(container.Image)
	if err != nil || podspec.PullPolicy(container, name) == v1.PullAlways {
		return false
	}
	_, found, err := r.parts.Images.Lookup(ctx, name.Full)
	return found && err == nil
}
