package main

import (
	_ "embed"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// storageMark precedes the value of STORAGE in descriptions.
const storageMark = "STORAGE="

// storageSIGs are the groups whose tests use provisioned volumes.
const storageSIGs = "sig-storage,sig-apps"

// externalPrefix starts the names of tests that the suite makes for a driver's definition. They name no group.
const externalPrefix = "External Storage ["

// driverFile is the definition of lab.StorageDriver for the suite, below _output/conformance.
const driverFile = "storage-driver.yaml"

//go:embed storage-driver.yaml
var driverDefinition []byte

// ofStorage matches the tests that STORAGE=csi selects: those of the driver, and those that skip themselves in a cluster
// without a default StorageClass.
var ofStorage = regexp.MustCompile(strings.Join([]string{
	`^External Storage \[`,
	`StatefulSet Basic StatefulSet functionality \[StatefulSetBasic\] (should adopt matching|should not deadlock|should perform rolling updates and roll backs of template modifications with PVCs|should provide basic)`,
	`StatefulSet (Automatically recreate PVC|Non-retain StatefulSetPersistentVolumeClaimPolicy|Scaling StatefulSetStartOrdinal)`,
	`PVC Protection`, `DynamicProvisioner Default`, `PersistentVolumes Default StorageClass`, `\[Serial\] Volume metrics`, `GenericPersistentVolume`,
}, "|"))

// driverArgs writes the driver's definition and returns the suite's flag for it; nothing without STORAGE.
func (o options) driverArgs(dir string) ([]string, error) {
	if o.storage == "" {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, driverFile)
	return []string{"--storage.testdriver=" + path}, os.WriteFile(path, driverDefinition, 0o644)
}
