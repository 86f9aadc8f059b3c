package app

import (
	"fmt"
	"runtime"
	"time"

	"github.com/spf13/pflag"

	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/pod"
)

// sharedNetworkBuild is Windows 1709: since then a container can join another's network.
const sharedNetworkBuild = 16299

func now() time.Time { return time.Now() }

// platformOf describes the capabilities of this host's engine.
func platformOf(facts host.Facts) pod.Platform {
	return pod.Platform{OS: facts.OS, Arch: facts.Arch, Build: facts.WindowsBuild,
		SharedNetwork: facts.OS == "linux" || facts.WindowsBuild >= sharedNetworkBuild}
}

// oldestBuild is Windows Server 2016, the first with containers.
const oldestBuild = 14393

// checkBuild refuses a Windows without containers.
func checkBuild(facts host.Facts) error {
	if facts.OS == "windows" && facts.WindowsBuild < oldestBuild {
		return fmt.Errorf("this is %s, build %d, which does not support containers: want Windows Server 2016 (build %d) or later", facts.OSImage, facts.WindowsBuild, oldestBuild)
	}
	return nil
}

// platformFlags select a platform to explain plans for.
type platformFlags struct {
	os    string
	build int
}

func (f *platformFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.os, "os", runtime.GOOS, "`system` to plan for: linux or windows")
	fs.IntVar(&f.build, "windows-build", 20348, "`build` of Windows to plan for: 14393 is Server 2016, 17763 is 2019, 20348 is 2022, 26100 is 2025")
}

func (f *platformFlags) value() (pod.Platform, error) {
	facts := host.Facts{OS: f.os, Arch: runtime.GOARCH}
	switch f.os {
	case "windows":
		facts.WindowsBuild = f.build
	case "linux":
	default:
		return pod.Platform{}, fmt.Errorf("--os=%s: want linux or windows", f.os)
	}
	return platformOf(facts), nil
}

func describe(p pod.Platform) string {
	if p.OS == "windows" {
		return fmt.Sprintf("windows build %d", p.Build)
	}
	return p.OS
}
