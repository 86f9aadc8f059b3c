package kinds

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/atomic"
)

// secrets is the source of secret volumes.
type secrets struct {
	stateless
	api interface {
		Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
	}
}

func (secrets) Has(v volume.Volume) bool { return v.Spec.Secret != nil }

func (k secrets) content(ctx context.Context, v volume.Volume) (atomic.Content, error) {
	return k.read(ctx, v.Pod, *v.Spec.Secret)
}

func (k secrets) read(ctx context.Context, p *v1.Pod, s v1.SecretVolumeSource) (atomic.Content, error) {
	secret, err := k.api.Secret(ctx, p.Namespace, s.SecretName)
	optional := s.Optional != nil && *s.Optional
	switch {
	case apierrors.IsNotFound(err) && optional:
		return atomic.Content{}, nil
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("secret %q not found", s.SecretName)
	case err != nil:
		return nil, fmt.Errorf("cannot read secret %q: %w", s.SecretName, err)
	}
	return pick(secret.Data, s.Items, s.DefaultMode, optional, "secret key")
}
