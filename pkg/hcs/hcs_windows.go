package hcs

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/Microsoft/hcsshim"
	"golang.org/x/sys/windows/registry"
)

// Measure returns the statistics of the container with the engine's ID, within milliseconds. It fails if the container
// is not running.
func Measure(id string) (Statistics, error) {
	container, err := hcsshim.OpenContainer(id)
	if err != nil {
		return Statistics{}, fmt.Errorf("cannot find container %s in the Host Compute Service: %w", id, err)
	}
	defer container.Close()
	s, err := container.Statistics()
	if err != nil {
		return Statistics{}, fmt.Errorf("cannot measure container %s: %w", id, err)
	}
	const tick = 100 * time.Nanosecond
	out := Statistics{CPU: time.Duration(s.Processor.TotalRuntime100ns) * tick, Commit: s.Memory.UsageCommitBytes, PrivateWorkingSet: s.Memory.UsagePrivateWorkingSetBytes}
	for _, n := range s.Network {
		out.Endpoints = append(out.Endpoints, Endpoint{n.EndpointId, n.BytesReceived, n.BytesSent, n.DroppedPacketsIncoming, n.DroppedPacketsOutgoing})
	}
	return out, nil
}

// specsKey, below HKEY_LOCAL_MACHINE, is where engines look for credential specs (moby daemon/oci_windows.go readCredentialSpecRegistry).
const specsKey = `SOFTWARE\Microsoft\Windows NT\CurrentVersion\Virtualization\Containers\CredentialSpecs`

// KeepCredentialSpecs writes the credential specs in want to the registry by name, and removes all others whose name
// begins with prefix. It does not touch other programs' specs. Idempotent. With no spec to write, it creates no key.
func KeepCredentialSpecs(prefix string, want map[string]string) error {
	const access = registry.QUERY_VALUE | registry.SET_VALUE
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, specsKey, access)
	if errors.Is(err, registry.ErrNotExist) && len(want) == 0 {
		return nil
	}
	if errors.Is(err, registry.ErrNotExist) {
		key, _, err = registry.CreateKey(registry.LOCAL_MACHINE, specsKey, access)
	}
	if err != nil {
		return fmt.Errorf(`cannot open HKLM\%s: %w`, specsKey, err)
	}
	defer key.Close()
	if err := keepValues(key, prefix, want); err != nil {
		return fmt.Errorf(`cannot change HKLM\%s: %w`, specsKey, err)
	}
	return nil
}

// keepValues makes want the only values whose names begin with prefix.
func keepValues(key registry.Key, prefix string, want map[string]string) error {
	names, err := key.ReadValueNames(0)
	errs := []error{err}
	for _, name := range names {
		if _, wanted := want[name]; !wanted && strings.HasPrefix(name, prefix) {
			errs = append(errs, key.DeleteValue(name))
		}
	}
	for name, content := range want {
		errs = append(errs, key.SetStringValue(name, content))
	}
	return errors.Join(errs...)
}
