package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// oldControlPlane is the oldest minor version of the control plane that CONTROL_PLANE can select. Its module,
// hack/tools/control-plane-1.33, has the last patch version.
const (
	oldControlPlane        = "1.33"
	oldControlPlaneVersion = "1.33.13"
)

const versionPackage = "k8s.io/component-base/version."

// versionFlags are the linker flags that give upstream's programs a version, as its own build does.
func versionFlags(minor, version string) string {
	return "-s -w -X " + versionPackage + "gitVersion=v" + version + " -X " + versionPackage + "gitMajor=1 -X " + versionPackage +
		"gitMinor=" + minor + " -X " + versionPackage + "gitTreeState=clean"
}

var olderControl = tool{
	module: "control-plane-" + oldControlPlane, dir: "control-plane-" + oldControlPlane,
	packages: []string{"k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes/cmd/kube-controller-manager", "k8s.io/kubernetes/cmd/kube-scheduler"},
	names:    []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"},
	ldflags:  versionFlags("33", oldControlPlaneVersion),
}

// CheckControlPlane returns an error unless name is a value of CONTROL_PLANE; "" is the version that we follow.
func CheckControlPlane(name string) error {
	if name == "" || name == oldControlPlane {
		return nil
	}
	return fmt.Errorf("CONTROL_PLANE: got %q, want %s, or nothing for %s", name, oldControlPlane, kubernetesVersion)
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

// upControlPlane builds CONTROL_PLANE. It rejects another than the running cluster's: an older API server does not read
// everything that a newer one has written.
func (c *Cluster) upControlPlane(ctx context.Context) error {
	if err := CheckControlPlane(c.ControlPlane); err != nil {
		return err
	}
	if have, err := os.ReadFile(controlPlaneFile()); err == nil && string(have) != c.ControlPlane {
		return fmt.Errorf("CONTROL_PLANE: the cluster runs with %q, want %q (nothing is %s): run make down, then try again", have, c.ControlPlane, kubernetesVersion)
	}
	if c.ControlPlane != "" {
		if err := c.buildTool(ctx, olderControl); err != nil {
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
	return filepath.Join(c.Tools, olderControl.dir, name)
}
