package kubelet

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	storage "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/winkube/winkube/pkg/clientset/clientsettest"
	"github.com/winkube/winkube/pkg/csi/csitest"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/plugins/pluginstest"
)

// TestCSIDriver: a driver that registers through its socket is in the CSINode and in the metrics. It leaves the CSINode when its socket is
// removed.
func TestCSIDriver(t *testing.T) {
	pluginstest.NeedsSockets(t)
	cfg := config(t)
	root, err := os.MkdirTemp("", "k") // a Unix socket's path has at most 107 characters
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	cfg.RootDir = root
	for _, dir := range []string{"plugins", "plugins_registry"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	socket := filepath.Join(root, "plugins", "csi.sock")
	stopDriver, err := csitest.New(t, "disk.example.com").Serve(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer stopDriver()
	plugin := pluginstest.New(&registration.PluginInfo{Type: registration.CSIPlugin, Name: "disk.example.com", Endpoint: socket, SupportedVersions: []string{"1.0.0"}})
	stopPlugin, err := plugin.Serve(filepath.Join(root, "plugins_registry", "disk.example.com-reg.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer stopPlugin()

	client := clientsettest.NewClientset()
	k, err := New(cfg, kubeclient.Clients{Main: client, Events: client, Heartbeat: client, Reviews: client})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	defer func() { // a kubelet that runs on would make its directories again after they were removed
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	published := func() bool {
		n, err := client.CSINodes().Get(t.Context(), "n1", metav1.GetOptions{})
		return err == nil && slices.ContainsFunc(n.Spec.Drivers, func(d storage.CSINodeDriver) bool {
			return d.Name == "disk.example.com" && d.NodeID == "node-of-disk.example.com"
		})
	}
	await(t, "the driver is published", published)
	watches := func() (n int) {
		for _, action := range client.Actions() {
			if action.GetResource().Resource == "csidrivers" && action.GetVerb() == "watch" {
				n++
			}
		}
		return n
	}
	await(t, "CSIDrivers are watched", func() bool { return watches() > 0 })
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(cfg.Counters)
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, family := range families {
		found = found || family.GetName() == "csi_operations_seconds"
	}
	if !found {
		t.Error("no metric csi_operations_seconds")
	}
	if n := watches(); n != 1 {
		t.Errorf("%d watches of CSIDrivers, want one for the drivers and their volumes", n)
	}
	stopPlugin()
	await(t, "the driver is taken back", func() bool { return !published() })
}
