package hcs

// Measure is nil: Linux has cgroups.
var Measure func(id string) (Statistics, error)

// KeepCredentialSpecs is nil: Linux has no registry.
var KeepCredentialSpecs func(prefix string, want map[string]string) error
