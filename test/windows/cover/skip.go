package main

import (
	"maps"
	"slices"
	"strings"
)

// skipped are tests that cannot pass under Wine or prove nothing there, each with its reason.
var skipped = map[string]string{
	"pkg/docker/logs.TestLogLinks":                   noLinks,
	"pkg/docker/logs.TestLogLinksOfOthers":           noLinks,
	"pkg/docker.TestHang":                            "has the engine answer within 150 ms, which Wine does not keep on a busy machine",
	"pkg/docker.TestPull":                            "has a pull make progress within 200 ms, which Wine does not keep on a busy machine",
	"pkg/docker/logs.TestReadDuringRotation":         linuxLogs,
	"pkg/docker/logs.TestFollowOddities":             linuxLogs,
	"pkg/docker/logs.TestFollowRotation":             linuxLogs,
	"pkg/docker/logs.TestLogFilesRefused":            linuxLogs,
	"pkg/docker.TestSuiteFakeOldest":                 "binds paths of this host, which have a colon, in an engine of Linux, whose oldest takes none",
	"pkg/kubeclient.TestJoinAndRotate":               noLinks + ", as client-go keeps certificates by",
	"pkg/kubeclient.TestClientsRotate":               noLinks + ", as client-go keeps certificates by",
	"pkg/kubeclient.TestRenewalFails":                noLinks + ", as client-go keeps certificates by",
	"cmd/kube-proxy/app.TestConfigLinkChanged":       noLinks,
	"pkg/pod/start.TestReadVolumeFile":               noLinks,
	"pkg/probe.TestCloseIsOrderly":                   "AcceptEx of Wine fails when the client has gone already",
	"pkg/proxy/relay.TestUDPSession":                 oneUDPAddress,
	"pkg/proxy/relay.TestUDPSessionsEnd":             oneUDPAddress,
	"pkg/proxy/relay.TestSessionsShared":             oneUDPAddress,
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
	linuxLogs     = "the engine's log files are read on Linux only; here a file that is open can be neither renamed nor removed"
	noReset       = "a socket with linger 0 is closed in order under Wine, with no reset"
)

// skippedTests returns the names of a package's skipped tests.
func skippedTests(pkg string) (names []string) {
	for _, key := range slices.Sorted(maps.Keys(skipped)) {
		if name, ok := strings.CutPrefix(key, pkg+"."); ok {
			names = append(names, name)
		}
	}
	return names
}
