package main

import (
	"maps"
	"slices"
	"strings"
)

// skippedPackages are not run at all.
var skippedPackages = map[string]string{}

// skipped are tests that cannot pass under Wine, or prove nothing there, each with its reason.
var skipped = map[string]string{
	"pkg/pod.TestReadVolumeFile": "os.Symlink under Wine returns no error and makes nothing",
	"pkg/docker.TestLogLinks":    "os.Symlink under Wine returns no error and makes nothing",
}

// skippedTests lists the names of a package's skipped tests.
func skippedTests(pkg string) (names []string) {
	for _, key := range slices.Sorted(maps.Keys(skipped)) {
		if name, ok := strings.CutPrefix(key, pkg+"."); ok {
			names = append(names, name)
		}
	}
	return names
}
