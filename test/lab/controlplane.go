package lab

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// controlPlanes are the values of CONTROL_PLANE, minor versions of Kubernetes, and the patch versions in their modules
// hack/tools/control-plane-*.
var controlPlanes = map[string]string{"1.33": "1.33.13", "1.37": "1.37.2"}

// ControlPlanes returns the values of CONTROL_PLANE, the oldest first.
func ControlPlanes() []string { return slices.Sorted(maps.Keys(controlPlanes)) }

const versionPackage = "k8s.io/component-base/version."

// versionFlags are the linker flags that give upstream's programs a version, as its own build does.
func versionFlags(minor, version string) string {
	return "-s -w -X " + versionPackage + "gitVersion=v" + version + " -X " + versionPackage + "gitMajor=1 -X " + versionPackage +
		"gitMinor=" + minor + " -X " + versionPackage + "gitTreeState=clean"
}

func controlPlane(name string) tool {
	return tool{
		module: "control-plane-" + name, dir: "control-plane-" + name,
		packages: []string{"k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes/cmd/kube-controller-manager", "k8s.io/kubernetes/cmd/kube-scheduler"},
		names:    []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"},
		ldflags:  versionFlags(strings.TrimPrefix(name, "1."), controlPlanes[name]),
	}
}

// CheckControlPlane returns an error unless name is a value of CONTROL_PLANE; "" is the version that we follow.
func CheckControlPlane(name string) error {
	if name == "" || controlPlanes[name] != "" {
		return nil
	}
	return fmt.Errorf("CONTROL_PLANE: got %q, want one of %s, or nothing for %s", name, strings.Join(ControlPlanes(), ", "), kubernetesVersion)
}

// controlPlaneFile records the running cluster's CONTROL_PLANE, as releaseFile does its ENGINE. Down removes it.
func controlPlaneFile() string { return filepath.Join(runDir, "control-plane") }

func runningControlPlane() string {
	data, err := os.ReadFile(controlPlaneFile())
	if err != nil {
		return ""
	}
	return string(data)
}

// upControlPlane builds CONTROL_PLANE. It rejects another than the running cluster's: an API server does not read
// everything that a newer one has written.
func (c *Cluster) upControlPlane(ctx context.Context) error {
	if err := CheckControlPlane(c.ControlPlane); err != nil {
		return err
	}
	if have, err := os.ReadFile(controlPlaneFile()); err == nil && string(have) != c.ControlPlane {
		return fmt.Errorf("CONTROL_PLANE: the cluster runs with %q, want %q (nothing is %s): run make down, then try again", have, c.ControlPlane, kubernetesVersion)
	}
	if c.ControlPlane != "" {
		if err := c.buildTool(ctx, controlPlane(c.ControlPlane)); err != nil {
			return err
		}
	}
	return os.WriteFile(controlPlaneFile(), []byte(c.ControlPlane), 0o644)
}

// controlProgram returns the path of a program of the control plane.
func (c *Cluster) controlProgram(name string) string {
	if c.ControlPlane == "" {
		return filepath.Join(c.Tools, name)
	}
	return filepath.Join(c.Tools, controlPlane(c.ControlPlane).dir, name)
}
