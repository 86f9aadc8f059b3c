package hcs

import "errors"

// Measure is of Windows: on Linux there are cgroups instead.
func Measure(string) (Statistics, error) {
	return Statistics{}, errors.New("the Host Compute Service is on Windows only")
}

// KeepCredentialSpecs is nil: Linux has no registry.
var KeepCredentialSpecs func(prefix string, want map[string]string) error
