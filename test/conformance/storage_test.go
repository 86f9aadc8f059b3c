package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/winkube/winkube/test/lab"
)

// TestDriverDefinition: the definition that the suite reads names the driver, topology and classes that the lab has.
// The suite would run with wrong names and skip what it does not find.
func TestDriverDefinition(t *testing.T) {
	dir := t.TempDir()
	args, err := options{storage: lab.StorageCSI}.driverArgs(dir)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, driverFile)
	if !slices.Equal(args, []string{"--storage.testdriver=" + path}) {
		t.Errorf("arguments %q", args)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		StorageClass, SnapshotClass struct{ FromExistingClassName string }
		DriverInfo                  struct {
			Name         string
			TopologyKeys []string
			Capabilities map[string]bool
		}
		ShortName     string
		InlineVolumes []map[string]any
	}
	if err := yaml.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if got.DriverInfo.Name != lab.StorageDriver || !slices.Equal(got.DriverInfo.TopologyKeys, []string{lab.StorageTopology}) || len(got.DriverInfo.Capabilities) == 0 {
		t.Errorf("it describes %+v", got.DriverInfo)
	}
	objects := map[string]bool{}
	for document := range strings.SplitSeq(string(lab.StorageObjects), "\n---\n") {
		var object struct {
			Kind, Provisioner, Driver string
			Metadata                  struct{ Name string }
		}
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatal(err)
		}
		if object.Provisioner+object.Driver != lab.StorageDriver && object.Metadata.Name != lab.StorageDriver {
			t.Errorf("%s %s is not of %s", object.Kind, object.Metadata.Name, lab.StorageDriver)
		}
		objects[object.Kind+" "+object.Metadata.Name] = true
	}
	for _, name := range []string{
		"StorageClass " + got.StorageClass.FromExistingClassName, "VolumeSnapshotClass " + got.SnapshotClass.FromExistingClassName, "VolumeSnapshotClass " + lab.SnapshotClass,
	} {
		if !objects[name] {
			t.Errorf("the lab has no %s: %v", name, objects)
		}
	}
	if args, err := (options{}).driverArgs(dir); err != nil || args != nil {
		t.Errorf("without STORAGE: %q, %v", args, err)
	}
}
