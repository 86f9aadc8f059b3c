package kubeclient

import (
	v1 "k8s.io/api/core/v1"
)

// key identifies one Secret or ConfigMap.
type key struct {
	kind            kind
	namespace, name string
}

// kind is the resource in the plural, as in URLs.
type kind string

const (
	secrets    kind = "secrets"
	configMaps kind = "configmaps"
)

// references returns the Secrets and ConfigMaps that pod refers to. The Node authorizer grants this node the same set.
func references(pod *v1.Pod) map[key]struct{} {
	set := map[key]struct{}{}
	add := func(kind kind, name string) {
		if name != "" {
			set[key{kind, pod.Namespace, name}] = struct{}{}
		}
	}
	for _, s := range pod.Spec.ImagePullSecrets {
		add(secrets, s.Name)
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		environmentReferences(c.Env, c.EnvFrom, add)
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		environmentReferences(c.Env, c.EnvFrom, add)
	}
	for i := range pod.Spec.EphemeralContainers {
		c := &pod.Spec.EphemeralContainers[i]
		environmentReferences(c.Env, c.EnvFrom, add)
	}
	for i := range pod.Spec.Volumes {
		volumeReferences(&pod.Spec.Volumes[i].VolumeSource, add)
	}
	return set
}

func environmentReferences(env []v1.EnvVar, from []v1.EnvFromSource, add func(kind, string)) {
	for _, f := range from {
		if f.SecretRef != nil {
			add(secrets, f.SecretRef.Name)
		}
		if f.ConfigMapRef != nil {
			add(configMaps, f.ConfigMapRef.Name)
		}
	}
	for _, e := range env {
		if e.ValueFrom == nil {
			continue
		}
		if ref := e.ValueFrom.SecretKeyRef; ref != nil {
			add(secrets, ref.Name)
		}
		if ref := e.ValueFrom.ConfigMapKeyRef; ref != nil {
			add(configMaps, ref.Name)
		}
	}
}

func volumeReferences(v *v1.VolumeSource, add func(kind, string)) {
	switch {
	case v.Secret != nil:
		add(secrets, v.Secret.SecretName)
	case v.ConfigMap != nil:
		add(configMaps, v.ConfigMap.Name)
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			if s.Secret != nil {
				add(secrets, s.Secret.Name)
			}
			if s.ConfigMap != nil {
				add(configMaps, s.ConfigMap.Name)
			}
		}
	case v.CSI != nil && v.CSI.NodePublishSecretRef != nil:
		add(secrets, v.CSI.NodePublishSecretRef.Name)
	case v.FlexVolume != nil && v.FlexVolume.SecretRef != nil:
		add(secrets, v.FlexVolume.SecretRef.Name)
	case v.ISCSI != nil && v.ISCSI.SecretRef != nil:
		add(secrets, v.ISCSI.SecretRef.Name)
	case v.AzureFile != nil:
		add(secrets, v.AzureFile.SecretName)
	}
}
