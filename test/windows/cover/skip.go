package main

import (
	"maps"
	"slices"
	"strings"
)

// skipped are tests that cannot pass under Wine, or prove nothing there, each with its reason.
var skipped = map[string]string{
	"pkg/docker.TestLogLinks":                        noLinks,
	"pkg/pod.TestReadVolumeFile":                     noLinks,
	"pkg/probe.TestCloseIsOrderly":                   "AcceptEx of Wine fails when the client has gone already",
	"pkg/proxy/relay.TestNoLeak":                     oneUDPAddress,
	"pkg/proxy/relay.TestPackets":                    oneUDPAddress,
	"pkg/proxy/relay.TestAffinity":                   oneUDPAddress,
	"pkg/proxy/relay.TestNodePort":                   oneUDPAddress,
	"pkg/proxy/relay.TestSuite":                      oneUDPAddress,
	"pkg/proxy/relay.TestAddresses":                  "needs addresses of services on an interface, which Wine's IP Helper cannot add",
	"pkg/proxy/relay.TestEndpointIsFront":            noReset,
	"pkg/proxy/relay.TestResetPassesThrough":         noReset,
	"pkg/proxy/relay.TestEstablishedSurvivesChanges": noReset,
}

const (
	noLinks       = "os.Symlink under Wine returns no error and makes nothing"
	oneUDPAddress = "Wine binds a UDP socket of one address to all: a second is refused, and answers leave from another address"
	noReset       = "a socket with linger 0 is closed in order under Wine, with no reset"
)

// skippedTests lists the names of a package's skipped tests.
func skippedTests(pkg string) (names []string) {
	for _, key := range slices.Sorted(maps.Keys(skipped)) {
		if name, ok := strings.CutPrefix(key, pkg+"."); ok {
			names = append(names, name)
		}
	}
	return names
}
