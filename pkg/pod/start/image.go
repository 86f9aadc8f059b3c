package start

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// isHyperV reports whether a pod's containers each run in a virtual machine. byDefault is the engine's default, for pods that do not
// choose.
func isHyperV(isolation string, byDefault func() bool) bool {
	return isolation == "hyperv" || isolation == "" && byDefault != nil && byDefault()
}

// image looks up or pulls the container's image, according to its pull policy.
func (r *Puller) image(ctx context.Context, p *v1.Pod, container *v1.Container, ref *v1.ObjectReference) (pod.Image, error) {
	name, err := podspec.ParseImage(container.Image)
	if err != nil {
		return pod.Image{}, r.failImage(ref, "InspectFailed", &pod.StartError{Reason: "InvalidImageName",
			Message: fmt.Sprintf("Failed to apply default image tag %q: %v", container.Image, err), Err: err})
	}
	creds := sync.OnceValue(func() []pod.Credential { return r.credentials(ctx, p, name) })
	policy := podspec.PullPolicy(container, name)
	if policy != v1.PullAlways {
		image, found, err := r.parts.Images.Lookup(ctx, name.Full)
		if err != nil {
			if ctx.Err() != nil {
				return pod.Image{}, context.Cause(ctx)
			}
			return pod.Image{}, r.failImage(ref, "InspectFailed", &pod.StartError{Reason: "ImageInspectError", Message: fmt.Sprintf("Failed to inspect image %q: %v", container.Image, err), Err: err})
		}
		if found && (r.parts.Records == nil || r.parts.Records.Usable(name.Full, image, creds)) {
			r.pulls.succeeded(pullKey{p.UID, name.Full})
			r.parts.Recorder.Eventf(ref, v1.EventTypeNormal, "Pulled", "Container image %q already present on machine and can be accessed by the pod", container.Image)
			return image, nil
		}
		if policy == v1.PullNever { // a pod that may not use the image must not learn whether it is present
			return pod.Image{}, r.failImage(ref, "ErrImageNeverPull", &pod.StartError{Reason: "ErrImageNeverPull",
				Message: fmt.Sprintf("Container image %q is not present with pull policy of Never", container.Image)})
		}
	}
	return r.pullImage(ctx, p, name, container.Image, ref, creds)
}

// failImage sends both of upstream's Events for an unavailable image.
func (r *Puller) failImage(ref *v1.ObjectReference, reason string, err *pod.StartError) error {
	r.parts.Recorder.Event(ref, v1.EventTypeWarning, reason, err.Message)
	return r.fail(ref, "", err)
}

func (r *Puller) pullImage(ctx context.Context, p *v1.Pod, name podspec.ImageName, image string, ref *v1.ObjectReference, lookup func() []pod.Credential) (pod.Image, error) {
	key := pullKey{p.UID, name.Full}
	if wait, last := r.pulls.backedOff(key); wait > 0 {
		message := fmt.Sprintf("Back-off pulling image %q", image)
		r.parts.Recorder.Event(ref, v1.EventTypeNormal, "BackOff", message)
		err := &pod.StartError{Reason: "ImagePullBackOff", Message: message + ": " + last, RetryAfter: wait}
		return pod.Image{}, r.fail(ref, "", err)
	}
	creds := lookup()
	r.parts.Recorder.Eventf(ref, v1.EventTypeNormal, "Pulling", "Pulling image %q", image)
	start := r.parts.Clock.Now()
	result, err := r.fetch(ctx, name.Full, creds)
	if err != nil {
		if ctx.Err() != nil { // the pod or the agent is stopping: not a failure
			return pod.Image{}, context.Cause(ctx)
		}
		failure := pullError(image, err)
		r.parts.Recorder.Eventf(ref, v1.EventTypeWarning, "Failed", "Failed to pull image %q: %v", image, failure.Message)
		r.pulls.failed(key, failure.Error())
		return pod.Image{}, r.fail(ref, "", failure)
	}
	r.pulls.succeeded(key)
	total := r.parts.Clock.Since(start)
	r.parts.Recorder.Eventf(ref, v1.EventTypeNormal, "Pulled", "Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.",
		image, result.took.Truncate(time.Millisecond), max(total, result.took).Truncate(time.Millisecond), result.image.Size)
	return result.image, nil
}

// fetch pulls, and records the pull.
func (r *Puller) fetch(ctx context.Context, name string, creds []pod.Credential) (pullResult, error) {
	records := r.parts.Records
	if records == nil {
		return r.pulls.pull(ctx, name, creds)
	}
	if err := records.Intend(name); err != nil {
		return pullResult{}, err
	}
	result, err := r.pulls.pull(ctx, name, creds)
	if err != nil {
		records.Failed(name, ctx.Err() != nil)
		return pullResult{}, err
	}
	var cred pod.Credential
	if result.used >= 0 {
		cred = creds[result.used]
	}
	records.Pulled(name, result.image, cred)
	return result, nil
}

// pullError words a failed pull. Engines pass on whatever a broken registry or proxy sent, even whole HTML pages.
func pullError(image string, err error) *pod.StartError {
	text := err.Error()
	unavailable := errors.Is(err, pod.ErrRegistryUnavailable)
	for _, code := range []string{"502", "503", "504"} {
		unavailable = unavailable || strings.Contains(text, "error parsing HTTP "+code)
	}
	if page := strings.Index(strings.ToLower(text), "<html"); page >= 0 {
		text = text[:page] + "(an HTML page)"
	}
	if unavailable {
		return &pod.StartError{Reason: "RegistryUnavailable", RetryAfter: pullErrorShown, Err: err,
			Message: fmt.Sprintf("image pull failed for %s because the registry is unavailable: %s", image, text)}
	}
	return &pod.StartError{Reason: "ErrImagePull", Message: text, RetryAfter: pullErrorShown, Err: err}
}

// credentials collects the logins for an image: from the pod's imagePullSecrets, then the node's, then the plugins'. Missing or unreadable
// sources do not stop the pull, because the image may be public.
func (r *Puller) credentials(ctx context.Context, p *v1.Pod, name podspec.ImageName) []pod.Credential {
	logins := r.podLogins(ctx, p)
	for _, file := range r.cfg.DockerConfigs {
		data, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			continue
		}
		var some []pod.Login
		if err == nil {
			some, err = dockerConfigLogins(data)
		}
		if err != nil {
			klog.ErrorS(err, "Cannot use all of the node's logins", "file", file)
		}
		logins = append(logins, some...)
	}
	if r.parts.Plugins != nil {
		logins = append(logins, r.parts.Plugins.Logins(ctx, p, name.Named.Name())...)
	}
	return credentialsFor(name.Named, logins)
}

// podLogins are the logins of the pod's imagePullSecrets. The API server has already added its service account's.
func (r *Puller) podLogins(ctx context.Context, p *v1.Pod) []pod.Login {
	var logins []pod.Login
	var unusable []string
	for _, ref := range p.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		secret, err := r.parts.Objects.Secret(ctx, p.Namespace, ref.Name)
		if err == nil {
			var some []pod.Login
			some, err = secretLogins(secret)
			logins = append(logins, some...)
		}
		if err != nil {
			klog.InfoS("Cannot use an image pull secret", "pod", klog.KObj(p), "secret", ref.Name, "err", err)
			unusable = append(unusable, ref.Name)
		}
	}
	if len(unusable) > 0 {
		r.parts.Recorder.Eventf(p, v1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
			"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(unusable, ", "))
	}
	return logins
}

// EnsureImage looks up or pulls the image of an image volume, with the pull policy, secrets, back-off and Events of a container's image.
// Errors are as for Container.
func (r *Puller) EnsureImage(ctx context.Context, pod *v1.Pod, volume *v1.Volume) (pod.Image, error) {
	like := &v1.Container{Image: volume.Image.Reference, ImagePullPolicy: volume.Image.PullPolicy}
	return r.image(ctx, pod, like, podspec.Reference(pod))
}
