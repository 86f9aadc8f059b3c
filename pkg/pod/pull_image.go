package pod

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
)

// image makes the container's image present, as its pull policy says.
func (r *Puller) image(ctx context.Context, pod *v1.Pod, container *v1.Container, ref *v1.ObjectReference) (Image, error) {
	name, err := parseImageName(container.Image)
	if err != nil {
		return Image{}, r.failImage(ref, "InspectFailed", &StartError{Reason: "InvalidImageName",
			Message: fmt.Sprintf("Failed to apply default image tag %q: %v", container.Image, err), Err: err})
	}
	creds := sync.OnceValue(func() []Credential { return r.credentials(ctx, pod, name) })
	policy := pullPolicy(container, name)
	if policy != v1.PullAlways {
		image, found, err := r.parts.Images.Lookup(ctx, name.full)
		if err != nil {
			if ctx.Err() != nil {
				return Image{}, context.Cause(ctx)
			}
			return Image{}, r.failImage(ref, "InspectFailed", &StartError{Reason: "ImageInspectError", Message: fmt.Sprintf("Failed to inspect image %q: %v", container.Image, err), Err: err})
		}
		if found && (r.parts.Records == nil || r.parts.Records.Usable(name.full, image, creds)) {
			r.pulls.succeeded(pullKey{pod.UID, name.full})
			r.parts.Recorder.Eventf(ref, v1.EventTypeNormal, "Pulled", "Container image %q already present on machine and can be accessed by the pod", container.Image)
			return image, nil
		}
		if policy == v1.PullNever { // whether it is present is nobody's business who may not use it
			return Image{}, r.failImage(ref, "ErrImageNeverPull", &StartError{Reason: "ErrImageNeverPull",
				Message: fmt.Sprintf("Container image %q is not present with pull policy of Never", container.Image)})
		}
	}
	return r.pullImage(ctx, pod, name, container.Image, ref, creds)
}

// failImage sends both of upstream's events of an image that cannot be had.
func (r *Puller) failImage(ref *v1.ObjectReference, reason string, err *StartError) error {
	r.parts.Recorder.Event(ref, v1.EventTypeWarning, reason, err.Message)
	return r.fail(ref, "", err)
}

func (r *Puller) pullImage(ctx context.Context, pod *v1.Pod, name imageName, image string, ref *v1.ObjectReference, lookup func() []Credential) (Image, error) {
	key := pullKey{pod.UID, name.full}
	if wait, last := r.pulls.backedOff(key); wait > 0 {
		message := fmt.Sprintf("Back-off pulling image %q", image)
		r.parts.Recorder.Event(ref, v1.EventTypeNormal, "BackOff", message)
		err := &StartError{Reason: "ImagePullBackOff", Message: message + ": " + last, RetryAfter: wait}
		return Image{}, r.fail(ref, "", err)
	}
	creds := lookup()
	r.parts.Recorder.Eventf(ref, v1.EventTypeNormal, "Pulling", "Pulling image %q", image)
	start := r.parts.Clock.Now()
	result, err := r.fetch(ctx, name.full, creds)
	if err != nil {
		if ctx.Err() != nil { // the pod is going, or the agent: nobody's fault
			return Image{}, context.Cause(ctx)
		}
		failure := pullError(image, err)
		r.parts.Recorder.Eventf(ref, v1.EventTypeWarning, "Failed", "Failed to pull image %q: %v", image, failure.Message)
		r.pulls.failed(key, failure.Error())
		return Image{}, r.fail(ref, "", failure)
	}
	r.pulls.succeeded(key)
	total := r.parts.Clock.Since(start)
	r.parts.Recorder.Eventf(ref, v1.EventTypeNormal, "Pulled", "Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.",
		image, result.took.Truncate(time.Millisecond), max(total, result.took).Truncate(time.Millisecond), result.image.Size)
	return result.image, nil
}

// fetch pulls, and keeps the record of it.
func (r *Puller) fetch(ctx context.Context, name string, creds []Credential) (pullResult, error) {
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
	var cred Credential
	if result.used >= 0 {
		cred = creds[result.used]
	}
	records.Pulled(name, result.image, cred)
	return result, nil
}

// pullError words a failed pull. Engines hand through whatever a broken registry or proxy answered, whole HTML pages included.
func pullError(image string, err error) *StartError {
	text := err.Error()
	unavailable := errors.Is(err, ErrRegistryUnavailable)
	for _, code := range []string{"502", "503", "504"} {
		unavailable = unavailable || strings.Contains(text, "error parsing HTTP "+code)
	}
	if page := strings.Index(strings.ToLower(text), "<html"); page >= 0 {
		text = text[:page] + "(an HTML page)"
	}
	if unavailable {
		return &StartError{Reason: "RegistryUnavailable", RetryAfter: pullErrorShown, Err: err,
			Message: fmt.Sprintf("image pull failed for %s because the registry is unavailable: %s", image, text)}
	}
	return &StartError{Reason: "ErrImagePull", Message: text, RetryAfter: pullErrorShown, Err: err}
}

// credentials collects the logins for an image: those of the pod's imagePullSecrets, then the node's, then the plugins'. What is not
// there or cannot be read does not stop the pull: the image may be public.
func (r *Puller) credentials(ctx context.Context, pod *v1.Pod, name imageName) []Credential {
	logins := r.podLogins(ctx, pod)
	for _, file := range r.cfg.DockerConfigs {
		data, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			continue
		}
		var some []Login
		if err == nil {
			some, err = dockerConfigLogins(data)
		}
		if err != nil {
			klog.ErrorS(err, "Cannot use all of the node's logins", "file", file)
		}
		logins = append(logins, some...)
	}
	if r.parts.Plugins != nil {
		logins = append(logins, r.parts.Plugins.Logins(ctx, pod, name.named.Name())...)
	}
	return credentialsFor(name.named, logins)
}

// podLogins are those of the pod's imagePullSecrets, to which the API server has added its service account's.
func (r *Puller) podLogins(ctx context.Context, pod *v1.Pod) []Login {
	var logins []Login
	var unusable []string
	for _, ref := range pod.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		secret, err := r.parts.Objects.Secret(ctx, pod.Namespace, ref.Name)
		if err == nil {
			var some []Login
			some, err = secretLogins(secret)
			logins = append(logins, some...)
		}
		if err != nil {
			klog.InfoS("Cannot use an image pull secret", "pod", klog.KObj(pod), "secret", ref.Name, "err", err)
			unusable = append(unusable, ref.Name)
		}
	}
	if len(unusable) > 0 {
		r.parts.Recorder.Eventf(pod, v1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
			"Unable to retrieve some image pull secrets (%s); attempting to pull the image may not succeed.", strings.Join(unusable, ", "))
	}
	return logins
}
