package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
)

// file is the content of one file of a volume.
type file struct {
	data []byte
	mode fs.FileMode // permission bits
	uid  *int64      // owner; nil: the agent's user
}

// payload is all the content of a volume: files by their path in it, with forward slashes.
type payload map[string]file

// prepareContent brings the content of a configMap, secret, projected or downwardAPI volume up to date.
func (m *Manager) prepareContent(ctx context.Context, s *podState, p *v1.Pod, v *v1.Volume, path string) error {
	// What was there before counts only where it still is: a reboot empties a volume in memory.
	inMemory := m.mounts != nil && (v.Secret != nil || v.Projected != nil)
	had, err := m.writer.has(path)
	if err == nil && had && inMemory {
		had, err = m.mounts.isMount(path)
	}
	if err != nil {
		return err
	}
	want, err := m.content(ctx, s, p, v)
	if err != nil {
		if had {
			klog.ErrorS(err, "Keeping a volume's former content", "pod", klog.KObj(p), "volume", v.Name)
			return nil
		}
		return err
	}
	for name := range want {
		if err := checkContentPath(m.cfg.Platform, name); err != nil {
			return err
		}
	}
	if err := makeDir(path, 0o755); err != nil {
		return fmt.Errorf("cannot make directory: %w", err)
	}
	if inMemory {
		if err := m.tmpfs(path, "mode=0755", true); err != nil {
			return err
		}
	}
	if err := m.protect(path, accessRead, accounts(p)...); err != nil {
		return err
	}
	return m.writer.write(path, want, m.fsGroup(p))
}

// checkContentPath says why a file of a volume cannot have the path p. Names that begin with ".." are the writer's own.
func checkContentPath(platform pod.Platform, p string) error {
	err := checkRelative(platform, p)
	if err == nil && len(p) > 1 && p[:2] == ".." {
		err = fmt.Errorf("%q must not start with \"..\"", p)
	}
	if err != nil {
		return fmt.Errorf("invalid path in items: %w", err)
	}
	return nil
}

// content gathers what a volume should hold now.
func (m *Manager) content(ctx context.Context, s *podState, p *v1.Pod, v *v1.Volume) (payload, error) {
	switch {
	case v.ConfigMap != nil:
		return m.configMap(ctx, p, *v.ConfigMap)
	case v.Secret != nil:
		return m.secret(ctx, p, *v.Secret)
	case v.DownwardAPI != nil:
		return m.downward(p, v.DownwardAPI.Items, v.DownwardAPI.DefaultMode)
	default:
		return m.projected(ctx, s, p, v.Projected)
	}
}

func (m *Manager) configMap(ctx context.Context, p *v1.Pod, s v1.ConfigMapVolumeSource) (payload, error) {
	cm, err := m.objects.ConfigMap(ctx, p.Namespace, s.Name)
	optional := s.Optional != nil && *s.Optional
	switch {
	case apierrors.IsNotFound(err) && optional:
		return payload{}, nil
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

func (m *Manager) secret(ctx context.Context, p *v1.Pod, s v1.SecretVolumeSource) (payload, error) {
	secret, err := m.objects.Secret(ctx, p.Namespace, s.SecretName)
	optional := s.Optional != nil && *s.Optional
	switch {
	case apierrors.IsNotFound(err) && optional:
		return payload{}, nil
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("secret %q not found", s.SecretName)
	case err != nil:
		return nil, fmt.Errorf("cannot read secret %q: %w", s.SecretName, err)
	}
	return pick(secret.Data, s.Items, s.DefaultMode, optional, "secret key")
}

// pick chooses which keys become which files: all under their own names, or those of items.
func pick(data map[string][]byte, items []v1.KeyToPath, defaultMode *int32, optional bool, what string) (payload, error) {
	out := payload{}
	if len(items) == 0 {
		for k, b := range data {
			out[k] = file{data: b, mode: modeOf(nil, defaultMode)}
		}
		return out, nil
	}
	for _, it := range items {
		b, ok := data[it.Key]
		if !ok {
			if optional {
				continue
			}
			return nil, fmt.Errorf("references non-existent %s: %s", what, it.Key)
		}
		out[it.Path] = file{data: b, mode: modeOf(it.Mode, defaultMode)}
	}
	return out, nil
}

// modeOf is a file's mode: its own, the volume's, or what the API would have filled in.
func modeOf(mode, defaultMode *int32) fs.FileMode {
	switch {
	case mode != nil:
		return fs.FileMode(*mode) & fs.ModePerm
	case defaultMode != nil:
		return fs.FileMode(*defaultMode) & fs.ModePerm
	}
	return fs.FileMode(v1.SecretVolumeSourceDefaultMode)
}

// projected puts several sources into one volume; of two files with one path the later source's counts.
func (m *Manager) projected(ctx context.Context, s *podState, p *v1.Pod, v *v1.ProjectedVolumeSource) (payload, error) {
	out := payload{}
	var errs []error
	for _, src := range v.Sources {
		part, err := m.projectedSource(ctx, s, p, src, v.DefaultMode)
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

func (m *Manager) projectedSource(ctx context.Context, s *podState, p *v1.Pod, src v1.VolumeProjection, mode *int32) (payload, error) {
	switch {
	case src.ConfigMap != nil:
		return m.configMap(ctx, p, v1.ConfigMapVolumeSource{LocalObjectReference: src.ConfigMap.LocalObjectReference,
			Items: src.ConfigMap.Items, DefaultMode: mode, Optional: src.ConfigMap.Optional})
	case src.Secret != nil:
		return m.secret(ctx, p, v1.SecretVolumeSource{SecretName: src.Secret.Name, Items: src.Secret.Items, DefaultMode: mode, Optional: src.Secret.Optional})
	case src.DownwardAPI != nil:
		return m.downward(p, src.DownwardAPI.Items, mode)
	case src.ServiceAccountToken != nil:
		return m.tokenFile(ctx, s, p, src.ServiceAccountToken, mode)
	case src.ClusterTrustBundle != nil:
		return m.trustBundle(ctx, src.ClusterTrustBundle, mode)
	case src.PodCertificate != nil:
		return nil, errors.New("projected source podCertificate is not supported by this node agent; use a secret")
	}
	return nil, errors.New("projected source has none of configMap, secret, downwardAPI, serviceAccountToken and clusterTrustBundle")
}
