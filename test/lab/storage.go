package lab

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// With STORAGE=csi volumes are provisioned: the tests' CSI driver runs on every node and once on the control plane's
// host, and beside that one upstream's sidecars. All drivers share one directory, so that one controller serves all.
//
//	claim -> csi-provisioner -> csi-controller (driver) -> PersistentVolume -> kubelet -> csi-node (driver)

// StorageCSI is the value of STORAGE that provisions volumes.
const StorageCSI = "csi"

// StorageDriver is the name of the CSI driver that STORAGE=csi runs. Tests start drivers of other names.
const StorageDriver = "storage.winkube.test"

// StorageTopology is the topology key of StorageDriver; its values are names of nodes.
const StorageTopology = StorageDriver + "/node"

// SnapshotClass is the VolumeSnapshotClass of StorageDriver.
const SnapshotClass = "dir"

// StorageObjects is a manifest of the objects of STORAGE=csi: the CSIDriver and its classes.
//
//go:embed storage/storage.yaml
var StorageObjects []byte

const sidecarModule = "github.com/kubernetes-csi/"

// sidecars are upstream's programs beside a CSI driver's controller.
var sidecars = tool{
	module: "csi-sidecars", dir: "csi",
	packages: []string{
		sidecarModule + "external-provisioner/v5/cmd/csi-provisioner", sidecarModule + "external-attacher/v4/cmd/csi-attacher",
		sidecarModule + "external-resizer/v2/cmd/csi-resizer", sidecarModule + "external-snapshotter/v8/cmd/csi-snapshotter",
		sidecarModule + "external-snapshotter/v8/cmd/snapshot-controller",
	},
	names:   []string{"csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter", "snapshot-controller"},
	ldflags: "-s -w",
}

// mockDriver is upstream's mock CSI driver, for tests that want it in a pod.
var mockDriver = tool{
	module: "kubernetes", packages: []string{"github.com/winkube/winkube/hack/tools/kubernetes/mockdriver"}, names: []string{"mockdriver"}, ldflags: "-s -w",
}

// BuildCSIPod builds what pods of upstream's tests of CSI run, unless it is up to date: the sidecars, the mock driver, and csipod. It returns the
// programs' paths by name.
func (c *Cluster) BuildCSIPod(ctx context.Context) (map[string]string, error) {
	programs := map[string]string{"mockdriver": filepath.Join(c.Tools, "mockdriver"), "csipod": filepath.Join(c.Tools, "csipod")}
	for _, name := range sidecars.names {
		programs[name] = filepath.Join(c.Tools, sidecars.dir, name)
	}
	return programs, errors.Join(c.buildTool(ctx, sidecars), c.buildTool(ctx, mockDriver))
}

// CheckStorage returns an error unless name is a value of STORAGE; "": no volumes are provisioned.
func CheckStorage(name string) error {
	if name == "" || name == StorageCSI {
		return nil
	}
	return fmt.Errorf("STORAGE: got %q, want %s, or nothing for a cluster without provisioned volumes", name, StorageCSI)
}

// storageFile records that the running cluster has STORAGE. Down removes it.
func storageFile() string { return filepath.Join(runDir, "storage") }

// runningStorage returns the running cluster's STORAGE: volumes need their driver, whoever runs Up next.
func runningStorage() string {
	data, err := os.ReadFile(storageFile())
	if err != nil {
		return ""
	}
	return string(data)
}

// StorageData is the directory with the volumes and snapshots of StorageDriver, and its log of calls.
func (c *Cluster) StorageData() string { return c.Control.Dir("csi-storage") }

func (c *Cluster) withoutStorage() bool { return c.Storage == "" }

// storageProcesses are the processes of the control plane's host for STORAGE=csi.
func (c *Cluster) storageProcesses() []*Process {
	socket := c.Control.Dir("csi.sock")
	processes := []*Process{{Name: "csi-controller", argv: func() []string {
		return c.storageDriverArgv("control", socket)
	}}}
	for _, name := range sidecars.names {
		argv := []string{filepath.Join(c.Tools, sidecars.dir, name), "--kubeconfig=" + c.Control.PKI("admin.kubeconfig"), "--kube-api-qps=100", "--kube-api-burst=200"}
		if name != "snapshot-controller" {
			argv = append(argv, "--csi-address="+socket)
		}
		if name == "csi-provisioner" || name == "csi-snapshotter" {
			argv = append(argv, "--extra-create-metadata")
		}
		argv = append(argv, "--v=2")
		processes = append(processes, &Process{Name: name, argv: func() []string { return argv }})
	}
	for _, p := range processes {
		p.host, p.unwanted = c.Control, c.withoutStorage
	}
	return processes
}

func (c *Cluster) storageDriverArgv(node, socket string, more ...string) []string {
	return append([]string{filepath.Join(c.Tools, "csidriver"), "--name=" + StorageDriver, "--node-id=" + node, "--data=" + c.StorageData(),
		"--endpoint=" + socket, "--topology=" + StorageTopology + "=" + node}, more...)
}

// storageNodeArgv starts the driver's node service beside the kubelet, as a DaemonSet would.
func (h *Host) storageNodeArgv() []string {
	return h.cluster.storageDriverArgv(h.Name, h.KubeletDir("plugins", StorageDriver, "csi.sock"), "--registry="+h.KubeletDir("plugins_registry"))
}

// upStorage builds and starts what provisions volumes, and waits until every node has the driver and the API server
// knows snapshots.
func (c *Cluster) upStorage(ctx context.Context) error {
	if err := c.buildTool(ctx, sidecars); err != nil {
		return err
	}
	if err := c.applyStorage(ctx); err != nil {
		return err
	}
	if err := os.WriteFile(storageFile(), []byte(c.Storage), 0o644); err != nil {
		return err
	}
	for _, node := range c.Nodes {
		if err := node.Process("csi-node").Ensure(ctx); err != nil {
			return err
		}
	}
	if err := c.ensureSidecars(ctx); err != nil {
		return err
	}
	return c.waitStorage(ctx)
}

// ensureSidecars starts the driver's controller, then its sidecars: they end when they lose the driver, as in a pod,
// whose kubelet would restart them.
func (c *Cluster) ensureSidecars(ctx context.Context) error {
	controller := c.Control.Process("csi-controller")
	former, _ := controller.PID()
	if err := controller.Ensure(ctx); err != nil {
		return err
	}
	now, _ := controller.PID()
	for _, name := range sidecars.names {
		sidecar := c.Control.Process(name)
		if now != former {
			if err := sidecar.Stop(ctx); err != nil {
				return err
			}
		}
		if err := sidecar.Ensure(ctx); err != nil {
			return err
		}
	}
	return nil
}

// applyStorage creates the definitions of snapshots, which come with upstream's client, and our classes.
func (c *Cluster) applyStorage(ctx context.Context) error {
	module := sidecarModule + "external-snapshotter/client/v8"
	out, err := run(ctx, "go", "-C", filepath.Join(c.Root, "hack/tools", sidecars.module), "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return err
	}
	definitions, err := filepath.Glob(filepath.Join(strings.TrimSpace(out), "config/crd/snapshot.storage.k8s.io_*.yaml"))
	if err != nil || len(definitions) == 0 {
		return errors.Join(err, fmt.Errorf("the module %s has no definitions of snapshots: run go mod download in hack/tools/%s", module, sidecars.module))
	}
	args := []string{"apply"}
	for _, path := range definitions {
		args = append(args, "-f", path)
	}
	if _, err := c.Kubectl(ctx, args...); err != nil {
		return err
	}
	if _, err := c.Kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s", "crd/volumesnapshots.snapshot.storage.k8s.io",
		"crd/volumesnapshotcontents.snapshot.storage.k8s.io", "crd/volumesnapshotclasses.snapshot.storage.k8s.io"); err != nil {
		return err
	}
	path := c.Control.Dir("storage.yaml")
	if err := os.WriteFile(path, StorageObjects, 0o644); err != nil {
		return err
	}
	_, err = c.Kubectl(ctx, "apply", "-f", path)
	return err
}

// waitStorage waits until the kubelets have published the driver, and every process runs.
func (c *Cluster) waitStorage(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	for _, host := range c.Nodes {
		if err := host.Process("csi-node").await(ctx, time.Minute, func(ctx context.Context) error {
			node, err := client.StorageV1().CSINodes().Get(ctx, host.Name, metav1.GetOptions{})
			if err == nil && !slices.ContainsFunc(node.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == StorageDriver }) {
				err = fmt.Errorf("the CSINode of %s does not have the driver %s yet", host.Name, StorageDriver)
			}
			return err
		}); err != nil {
			return err
		}
	}
	for _, p := range c.storageProcesses() {
		if process := c.Control.Process(p.Name); !process.Running() {
			return &LogError{Err: fmt.Errorf("%s on %s ended", p.Name, c.Control.Name), Log: process.Log()}
		}
	}
	return nil
}
