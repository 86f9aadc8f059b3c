package engine

import (
	"context"
	"strconv"
	"strings"
)

// apiReleases are the first releases of Docker with an API version: 1.n is in every release from that major number on. The list is Docker's own,
// https://docs.docker.com/reference/api/engine/#api-version-matrix.
var apiReleases = []struct{ minor, release int }{
	{52, 29}, {48, 28}, {46, 27}, {45, 26}, {44, 25}, {43, 24}, {42, 23}, {41, 20}, {40, 19}, {36, 18}, {27, 17}, {24, 1},
}

// Release is the engine's major release, such as 28 or 20: the later one by its version string and by its API version. Builds of developers and
// distributions have arbitrary versions ("dev", "library-import", "0.0.0-20260101"), but no build speaks an API that it does not have. The API may be
// older than the engine, since it is negotiated. 0: unknown.
func (i Info) Release() int { return max(namedRelease(i.Version), apiRelease(i.APIVersion)) }

// namedRelease reads the major number of a version; 0: not a Docker version. Docker's have one digit or two, unlike a year or a date.
func namedRelease(version string) int {
	first, _, found := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	n, err := strconv.Atoi(first)
	if !found || err != nil || n < 0 || n > 99 {
		return 0
	}
	return n
}

func apiRelease(version string) int {
	major, minor, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(minor)
	if major != "1" || err != nil {
		return 0
	}
	for _, known := range apiReleases {
		if n >= known.minor {
			return known.release
		}
	}
	return 0
}

// ReleaseVersion is Version if that begins with the engine's release, otherwise a version that does. Code that depends on the release uses it. It is
// "" if nothing is known.
func (i Info) ReleaseVersion() string {
	switch release := i.Release(); release {
	case namedRelease(i.Version):
		return i.Version
	default:
		return strconv.Itoa(release) + ".0 (" + strings.TrimSpace(i.Version+", API "+i.APIVersion) + ")"
	}
}

// ReleaseVersion asks the engine for Info.ReleaseVersion.
func (e *Client) ReleaseVersion(ctx context.Context) (string, error) {
	info, err := e.Current(ctx)
	return info.ReleaseVersion(), err
}
