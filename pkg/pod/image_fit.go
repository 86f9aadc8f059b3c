package pod

import (
	"fmt"
	"strconv"
	"strings"
)

// stableABI is the build of Windows Server 2022. Its images also run with process isolation on later hosts. Source: Microsoft, "Windows
// container version compatibility".
const stableABI = 20348

// CheckImageFits returns why image cannot run on this Windows host, in clearer words than the engine, and before the container starts.
// hyperv means that the container gets a virtual machine. An image without a version passes.
func CheckImageFits(name string, image Image, platform Platform, hyperv bool) error {
	if platform.OS != "windows" {
		return nil
	}
	if image.OS != "" && image.OS != "windows" {
		return fmt.Errorf("image %s is for %s, and this host runs Windows containers: use an image for windows, or the nodeSelector kubernetes.io/os: %[2]s", name, image.OS)
	}
	build := imageBuild(image.OSVersion)
	switch {
	case build == 0, build == platform.Build:
		return nil
	case build > platform.Build:
		return fmt.Errorf("image %s is for Windows build %d, which is newer than this host's, %d: use an image for build %[3]d, or the nodeSelector node.kubernetes.io/windows-build",
			name, build, platform.Build)
	case hyperv, build >= stableABI:
		return nil
	}
	return fmt.Errorf("image %s is for Windows build %d, this host has %d, and without Hyper-V isolation they must be the same: use an image for build %[3]d, "+
		"or give the pod a RuntimeClass with handler hyperv", name, build, platform.Build)
}

// imageBuild is the third number of a version such as 10.0.14393.5850; 0 if there is none.
func imageBuild(version string) int {
	parts := strings.Split(version, ".")
	if len(parts) < 3 {
		return 0
	}
	build, err := strconv.Atoi(parts[2])
	if err != nil {
		return 0
	}
	return build
}
