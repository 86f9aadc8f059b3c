package hcs

import "errors"

// Measure returns errors.ErrUnsupported: Linux has cgroups.
func Measure(string) (Statistics, error) { return Statistics{}, errors.ErrUnsupported }

// KeepCredentialSpecs returns errors.ErrUnsupported if want has a credential spec: Linux has no registry.
func KeepCredentialSpecs(_ string, want map[string]string) error {
	if len(want) > 0 {
		return errors.ErrUnsupported
	}
	return nil
}
