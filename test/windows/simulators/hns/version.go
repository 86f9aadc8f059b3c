package hns

import "fmt"

// Version is the version of HNS (GET /globals/version), by which callers decide what it supports.
type Version struct{ Major, Minor int }

func (v Version) atLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// versions are HNS versions by Windows build. A build that is not listed has no version: it has HNSCall but no computenetwork.dll
// (hcsshim hcnsupport.go: "this is expected on pre 1803 builds").
//   - 17763: kubernetes/kubernetes#93304 (9.3 on Windows Server, version 1809)
//   - 19041: microsoft/hcsshim#1003 (11.10 on 10.0.19041.867)
//   - 20348: no record found; the lowest version with all that Microsoft documents for Windows Server 2022 (hcsshim hcnglobals.go: set
//     policies 13.0, WFP layer-4 proxy 13.2)
//   - 26100: 15.4 as first seen (kubernetes/kubernetes#131466); 15.5 is the first whose load balancers can be modified (hnslib hcnglobals.go)
var versions = map[int]Version{17763: {9, 3}, 19041: {11, 10}, 20348: {13, 2}, 26100: {15, 5}}

// supports reports whether v has a feature, according to the table in hcsshim's hcnglobals.go.
func (v Version) supports(feature string) bool {
	switch feature {
	case "RemoteSubnetRoute", "HostRoute":
		return v.atLeast(9, 2)
	case "DSR":
		return v.atLeast(9, 3) && v != Version{10, 0} && v != Version{10, 1}
	case "VxlanPort":
		return v.atLeast(10, 3)
	case "IPv6":
		return v.atLeast(11, 10)
	case "SessionAffinity":
		return v.atLeast(12, 0)
	case "SetPolicy":
		return v.atLeast(13, 0)
	case "L4WFPPROXY":
		return v.atLeast(13, 2)
	case "TierAcl":
		return v.atLeast(14, 0)
	case "NetworkACL":
		return v.atLeast(15, 0)
	case "ModifyLoadBalancer":
		return v.atLeast(15, 5)
	case "L4Proxy":
		return v.Major == 9 && v.Minor >= 5 || v.Major == 10 && v.Minor >= 5 || v.Major == 11 && v.Minor >= 11 || v.Major == 12 && v.Minor >= 1 || v.atLeast(13, 1)
	}
	return true
}
