package start

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// envSources is everything that an environment depends on besides the container's spec. A missing entry means that the object does not
// exist.
type envSources struct {
	pod         *v1.Pod
	configMaps  map[string]*v1.ConfigMap
	secrets     map[string]*v1.Secret
	services    []pod.Env
	addresses   podspec.Addresses
	allocatable v1.ResourceList
	// file reads a file of a volume, for fileKeyRef.
	file func(volume, path string) (text string, found bool, err error)
}

// environment is an ordered set of variables. A name keeps the position of its first value and has the last value.
type environment struct {
	list  []pod.Env
	index map[string]int
}

func (e *environment) get(name string) (string, bool) {
	i, ok := e.index[name]
	if !ok {
		return "", false
	}
	return e.list[i].Value, true
}

func (e *environment) set(name, value string) {
	if i, ok := e.index[name]; ok {
		e.list[i].Value = value
		return
	}
	e.index[name] = len(e.list)
	e.list = append(e.list, pod.Env{Name: name, Value: value})
}

// buildEnv builds the environment of one container: envFrom in order, then env in order, each expanded with those before it and with the
// services' variables, then the services' variables that are not set yet. skipped are names from envFrom that are not valid in an
// environment.
func buildEnv(container *v1.Container, from envSources) (env []pod.Env, skipped []string, err error) {
	vars := &environment{index: map[string]int{}}
	if skipped, err = addEnvFrom(vars, container.EnvFrom, from); err != nil {
		return nil, nil, err
	}
	services := &environment{index: map[string]int{}}
	for _, s := range from.services {
		services.set(s.Name, s.Value)
	}
	lookup := func(name string) (string, bool) {
		if value, ok := vars.get(name); ok {
			return value, true
		}
		return services.get(name)
	}
	for i := range container.Env {
		v := &container.Env[i]
		value, set := podspec.Expand(v.Value, lookup), true
		if v.Value == "" && v.ValueFrom != nil {
			if value, set, err = envValue(container, v.ValueFrom, from); err != nil {
				return nil, nil, err
			}
		}
		if set {
			vars.set(v.Name, value)
		}
	}
	for _, s := range services.list {
		if _, ok := vars.get(s.Name); !ok {
			vars.set(s.Name, s.Value)
		}
	}
	return vars.list, skipped, nil
}

func addEnvFrom(vars *environment, list []v1.EnvFromSource, from envSources) (skipped []string, err error) {
	for _, source := range list {
		data := map[string]string{}
		switch {
		case source.ConfigMapRef != nil:
			object, found := from.configMaps[source.ConfigMapRef.Name]
			if !found && !podspec.IsTrue(source.ConfigMapRef.Optional) {
				return nil, missing("configmap", source.ConfigMapRef.Name)
			}
			if found {
				data = object.Data
			}
		case source.SecretRef != nil:
			object, found := from.secrets[source.SecretRef.Name]
			if !found && !podspec.IsTrue(source.SecretRef.Optional) {
				return nil, missing("secret", source.SecretRef.Name)
			}
			if found {
				for key, value := range object.Data {
					data[key] = string(value)
				}
			}
		}
		for _, key := range slices.Sorted(maps.Keys(data)) {
			name := source.Prefix + key
			if name == "" || strings.ContainsAny(name, "=\x00") {
				skipped = append(skipped, name)
				continue
			}
			vars.set(name, data[key])
		}
	}
	return skipped, nil
}

// envValue resolves one valueFrom. set is false if an optional source does not exist: the variable is then not set.
func envValue(container *v1.Container, source *v1.EnvVarSource, from envSources) (value string, set bool, err error) {
	switch {
	case source.FieldRef != nil:
		value, err = podspec.FieldValue(from.pod, source.FieldRef.FieldPath, from.addresses)
		return value, err == nil, err
	case source.ResourceFieldRef != nil:
		value, err = podspec.ResourceValue(from.pod, container, source.ResourceFieldRef, from.allocatable)
		return value, err == nil, err
	case source.ConfigMapKeyRef != nil:
		ref := source.ConfigMapKeyRef
		object, found := from.configMaps[ref.Name]
		if found {
			value, set = object.Data[ref.Key]
		}
		if set || podspec.IsTrue(ref.Optional) {
			return value, set, nil
		}
		if !found {
			return "", false, missing("configmap", ref.Name)
		}
		return "", false, fmt.Errorf("couldn't find key %s in ConfigMap %s/%s", ref.Key, from.pod.Namespace, ref.Name)
	case source.SecretKeyRef != nil:
		ref := source.SecretKeyRef
		object, found := from.secrets[ref.Name]
		if found {
			var data []byte
			data, set = object.Data[ref.Key]
			value = string(data)
		}
		if set || podspec.IsTrue(ref.Optional) {
			return value, set, nil
		}
		if !found {
			return "", false, missing("secret", ref.Name)
		}
		return "", false, fmt.Errorf("couldn't find key %s in Secret %s/%s", ref.Key, from.pod.Namespace, ref.Name)
	case source.FileKeyRef != nil:
		return envFileValue(source.FileKeyRef, from)
	}
	return "", true, nil
}

func envFileValue(ref *v1.FileKeySelector, from envSources) (value string, set bool, err error) {
	text, found, err := from.file(ref.VolumeName, ref.Path)
	if err != nil {
		return "", false, err
	}
	if found {
		value, set, err = parseEnvFile(text, ref.Key)
		if err != nil {
			return "", false, fmt.Errorf("cannot parse environment file %s of volume %s: %w", ref.Path, ref.VolumeName, err)
		}
	}
	if set && value != "" {
		return value, true, nil
	}
	if podspec.IsTrue(ref.Optional) {
		return "", false, nil
	}
	return "", false, fmt.Errorf("environment variable key %q not found in file %q of volume %q", ref.Key, ref.Path, ref.VolumeName)
}

// envReferences returns the names of the objects that a container's environment needs.
func envReferences(container *v1.Container) (configMaps, secrets []string) {
	for _, source := range container.EnvFrom {
		if source.ConfigMapRef != nil {
			configMaps = append(configMaps, source.ConfigMapRef.Name)
		}
		if source.SecretRef != nil {
			secrets = append(secrets, source.SecretRef.Name)
		}
	}
	for _, v := range container.Env {
		if v.ValueFrom == nil || v.Value != "" {
			continue
		}
		if v.ValueFrom.ConfigMapKeyRef != nil {
			configMaps = append(configMaps, v.ValueFrom.ConfigMapKeyRef.Name)
		}
		if v.ValueFrom.SecretKeyRef != nil {
			secrets = append(secrets, v.ValueFrom.SecretKeyRef.Name)
		}
	}
	slices.Sort(configMaps)
	slices.Sort(secrets)
	return slices.Compact(configMaps), slices.Compact(secrets)
}

// missing has upstream's wording, because tools look for it.
func missing(kind, name string) error { return fmt.Errorf("%s %q not found", kind, name) }

// expandAll expands a command line. nil stays nil, which means the image's command.
func expandAll(words []string, env []pod.Env) []string {
	if len(words) == 0 {
		return nil
	}
	values := make(map[string]string, len(env))
	for _, e := range env {
		values[e.Name] = e.Value
	}
	return podspec.ExpandAll(words, values)
}
