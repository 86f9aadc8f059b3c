package pod

import (
	"context"

	v1 "k8s.io/api/core/v1"
)

// EnsureImage makes the image of an image volume present, with the pull policy, secrets, back-off and events of a container's image.
// Errors are as for Container.
func (r *Puller) EnsureImage(ctx context.Context, pod *v1.Pod, volume *v1.Volume) (Image, error) {
	like := &v1.Container{Image: volume.Image.Reference, ImagePullPolicy: volume.Image.PullPolicy}
	return r.image(ctx, pod, like, podRef(pod))
}
