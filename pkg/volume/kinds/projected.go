package kinds

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/volume/atomic"
)

// projected is the source of projected volumes: several others in one.
type projected struct {
	configMaps configMaps
	secrets    secrets
	downward   downwardAPI
	tokens     *tokens
	trust      trustBundles
}

func (*projected) Has(v volume.Volume) bool { return v.Spec.Projected != nil }

func (k *projected) content(ctx context.Context, v volume.Volume) (atomic.Content, error) {
	return k.read(ctx, v.Pod, v.Spec.Projected)
}

func (k *projected) forget(left volume.Remains) { k.tokens.forget(left.UID) }

// read puts several sources into one volume; of two files with one path the later source's counts.
func (k *projected) read(ctx context.Context, p *v1.Pod, v *v1.ProjectedVolumeSource) (atomic.Content, error) {
	out := atomic.Content{}
	var errs []error
	for _, src := range v.Sources {
		part, err := k.part(ctx, p, src, v.DefaultMode)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for name, f := range part {
			out[name] = f
		}
	}
	return out, errors.Join(errs...)
}

func (k *projected) part(ctx context.Context, p *v1.Pod, src v1.VolumeProjection, mode *int32) (atomic.Content, error) {
	switch {
	case src.ConfigMap != nil:
		return k.configMaps.read(ctx, p, v1.ConfigMapVolumeSource{LocalObjectReference: src.ConfigMap.LocalObjectReference,
			Items: src.ConfigMap.Items, DefaultMode: mode, Optional: src.ConfigMap.Optional})
	case src.Secret != nil:
		return k.secrets.read(ctx, p, v1.SecretVolumeSource{SecretName: src.Secret.Name, Items: src.Secret.Items, DefaultMode: mode, Optional: src.Secret.Optional})
	case src.DownwardAPI != nil:
		return k.downward.read(p, src.DownwardAPI.Items, mode)
	case src.ServiceAccountToken != nil:
		return k.tokens.read(ctx, p, src.ServiceAccountToken, mode)
	case src.ClusterTrustBundle != nil:
		return k.trust.read(ctx, src.ClusterTrustBundle, mode)
	case src.PodCertificate != nil:
		return nil, errors.New("projected source podCertificate is not supported by this node agent; use a secret")
	}
	return nil, errors.New("projected source has none of configMap, secret, downwardAPI, serviceAccountToken and clusterTrustBundle")
}
