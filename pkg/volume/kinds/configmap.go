package kinds

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/atomic"
)

// configMaps is the source of configMap volumes.
type configMaps struct {
	stateless
	api interface {
		ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	}
}

func (configMaps) Has(v volume.Volume) bool { return v.Spec.ConfigMap != nil }

func (k configMaps) content(ctx context.Context, v volume.Volume) (atomic.Content, error) {
	return k.read(ctx, v.Pod, *v.Spec.ConfigMap)
}

func (k configMaps) read(ctx context.Context, p *v1.Pod, s v1.ConfigMapVolumeSource) (atomic.Content, error) {
	cm, err := k.api.ConfigMap(ctx, p.Namespace, s.Name)
	optional := s.Optional != nil && *s.Optional
	switch {
	case apierrors.IsNotFound(err) && optional:
		return atomic.Content{}, nil
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("configmap %q not found", s.Name)
	case err != nil:
		return nil, fmt.Errorf("cannot read configmap %q: %w", s.Name, err)
	}
	data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	for k, text := range cm.Data {
		data[k] = []byte(text)
	}
	for k, b := range cm.BinaryData {
		data[k] = b
	}
	return pick(data, s.Items, s.DefaultMode, optional, "config key")
}
