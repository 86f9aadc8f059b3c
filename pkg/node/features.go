package node

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/component-helpers/nodedeclaredfeatures/types"

	"github.com/winkube/winkube/pkg/daemon"
)

// Runtime is what the engine supports.
type Runtime struct {
	Version  string
	Handlers []string // of RuntimeClasses, besides "" for the engine's default
	// RecursiveReadOnly means that the engine supports recursive read-only mounts.
	RecursiveReadOnly bool
}

// declaredFeatures lists the features of pods and pod updates that this node supports although not all nodes of the cluster may (KEP-5328):
// the scheduler and the API server keep such pods and updates from nodes that do not declare them. A name is declared as long as upstream
// declares it.
func declaredFeatures(os string) []string {
	linux := os == "linux"
	config := &types.NodeConfiguration{FeatureGates: types.FeatureGateMap{
		"RestartAllContainersOnContainerExits":    true,
		"ExtendWebSocketsToKubelet":               true,
		"InPlacePodVerticalScalingInitContainers": linux,
		"InPlacePodLevelResourcesVerticalScaling": linux,
	}}
	if v, err := version.ParseGeneric(daemon.Kubernetes); err == nil {
		config.Version = v
	}
	return nodedeclaredfeatures.DefaultFramework.DiscoverNodeFeatures(config)
}

// handlers are the runtime handlers for the status, the default one first.
func handlers(r Runtime) []v1.NodeRuntimeHandler {
	var out []v1.NodeRuntimeHandler
	for _, name := range append([]string{""}, r.Handlers...) {
		out = append(out, v1.NodeRuntimeHandler{Name: name, Features: &v1.NodeRuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: new(r.RecursiveReadOnly), UserNamespaces: new(false)}})
	}
	return out
}
