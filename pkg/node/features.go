package node

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/component-helpers/nodedeclaredfeatures/types"

	"github.com/winkube/winkube/pkg/daemon"
)

// Runtime is what the engine can do for pods.
type Runtime struct {
	Version  string
	Handlers []string // of RuntimeClasses, beside "" for the engine's default
	// RecursiveReadOnly says that read-only mounts can be made recursively so.
	RecursiveReadOnly bool
}

// declaredFeatures lists what pods and updates of pods may be given to this node although not all nodes of the cluster know it
// (KEP-5328): the scheduler and the API server keep them from a node that does not declare it. Names stand there as long as upstream
// declares them.
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

// handlers are the runtime handlers of the status, the default one first.
func handlers(r Runtime) []v1.NodeRuntimeHandler {
	var out []v1.NodeRuntimeHandler
	for _, name := range append([]string{""}, r.Handlers...) {
		out = append(out, v1.NodeRuntimeHandler{Name: name, Features: &v1.NodeRuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: new(r.RecursiveReadOnly), UserNamespaces: new(false)}})
	}
	return out
}
