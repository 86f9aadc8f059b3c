package source

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	v1 "k8s.io/api/core/v1"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// DecodeManifest reads the pods of a manifest (YAML documents or JSON) and applies the API server's defaults, for `kubelet plan`. Unknown
// fields and other kinds are errors. It does not handle static pods: Source does, with more checks.
func DecodeManifest(data []byte) ([]*v1.Pod, error) {
	var pods []*v1.Pod
	documents := yamlutil.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read the manifest: %w", err)
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		pod := &v1.Pod{}
		if err := yaml.UnmarshalStrict(document, pod); err != nil {
			return nil, fmt.Errorf("cannot parse the manifest: %w", err)
		}
		if pod.Kind != "Pod" || pod.APIVersion != "v1" {
			return nil, fmt.Errorf("cannot use the manifest: it is %s %s; want v1 Pod", pod.APIVersion, pod.Kind)
		}
		if pod.Namespace == "" {
			pod.Namespace = v1.NamespaceDefault
		}
		setDefaults(pod)
		pods = append(pods, pod)
	}
	if len(pods) == 0 {
		return nil, errors.New("cannot use the manifest: it holds no pod")
	}
	return pods, nil
}
