package engine

import "fmt"

// release is how a Windows Server and the Docker version used on it identify themselves.
type release struct {
	docker, api, minAPI string
	display             string // DisplayVersion or ReleaseId in the registry
	ubr                 int    // update build revision
	branch              string // from BuildLabEx
}

// releases lists the newest Docker for each Server. Sources: moby daemon/daemon_windows.go checkSystem (28 needs 17763), Docker EE's
// and Mirantis' compatibility matrices (17.06 to 20.10 for 2016), docs.docker.com/reference/api/engine/#api-version-matrix.
var releases = map[int]release{
	14393: {"17.06.2-ee-25", "1.30", "1.24", "1607", 7876, "rs1_release"},
	17763: {"19.03.18", "1.40", "1.24", "1809", 7009, "rs5_release"},
	20348: {"20.10.24", "1.41", "1.24", "21H2", 3328, "fe_release"},
	26100: {"28.5.2", "1.51", "1.24", "24H2", 3476, "ge_release"},
}

// Version returns the Docker version of a Windows Server and its API version, or empty strings for an unknown build.
func Version(build int) (docker, api string) {
	r := releases[build]
	return r.docker, r.api
}

// sharedNetworks is the first build whose containers can join another's network: version 1709. Source: Kubernetes 1.9's page on Windows
// Server containers ("unlocks key capabilities like shared network namespace"). Named pipe mounts came with the same build (moby/moby#33852).
const sharedNetworks = 16299

// kernelVersion returns the text of moby pkg/parsers/kernel/kernel_windows.go.
func (e *Engine) kernelVersion() string {
	return fmt.Sprintf("10.0 %d (%d.%d.amd64fre.%s)", e.opts.Build, e.opts.Build, e.facts.ubr, e.facts.branch)
}

// operatingSystem returns the text of moby pkg/parsers/operatingsystem/operatingsystem_windows.go.
func (e *Engine) operatingSystem() string {
	return fmt.Sprintf("Microsoft Windows Server Version %s (OS Build %d.%d)", e.facts.display, e.opts.Build, e.facts.ubr)
}

// osVersion returns the os.version of this host's images.
func (e *Engine) osVersion() string { return fmt.Sprintf("10.0.%d.%d", e.opts.Build, e.facts.ubr) }

var logDrivers = []string{"awslogs", "etwlogs", "fluentd", "gcplogs", "gelf", "json-file", "local", "splunk", "syslog"}

// rewriteVersion turns the answer to /version into that of Windows.
func (e *Engine) rewriteVersion(v map[string]any) {
	v["Version"], v["ApiVersion"], v["MinAPIVersion"], v["Os"], v["KernelVersion"] = e.facts.docker, e.facts.api, e.facts.minAPI, "windows", e.kernelVersion()
	v["Platform"] = map[string]string{"Name": "Docker Engine"}
	delete(v, "Components") // every component is Linux's; clients of this API use the other fields
}

// rewriteInfo turns the answer to /info into that of Windows. Sources: moby daemon/info.go and info_windows.go; drivers:
// libnetwork/drivers_windows.go.
func (e *Engine) rewriteInfo(v map[string]any) {
	for _, linux := range []string{"CgroupDriver", "CgroupVersion", "RuncCommit", "ContainerdCommit", "InitCommit", "InitBinary", "Runtimes", "DefaultRuntime", "Containerd", "SecurityOptions", "DriverStatus"} {
		delete(v, linux)
	}
	v["OSType"], v["OperatingSystem"], v["KernelVersion"], v["OSVersion"] = "windows", e.operatingSystem(), e.kernelVersion(), fmt.Sprintf("10.0.%d", e.opts.Build) // moby pkg/parsers/operatingsystem GetOperatingSystemVersion
	v["Isolation"], v["ServerVersion"] = e.opts.Isolation, e.facts.docker
	v["Driver"], v["DockerRootDir"] = "windowsfilter", `C:\ProgramData\docker`
	v["DriverStatus"] = [][]string{{"Windows", ""}}
	v["SecurityOptions"] = nil // moby daemon/info.go fillSecurityOptions sets none on Windows
	v["Plugins"] = map[string]any{
		"Volume": []string{"local"}, "Network": drivers, "Authorization": nil,
		"Log": logDrivers,
	}
	for _, limit := range []string{"MemoryLimit", "SwapLimit", "KernelMemory", "CpuCfsPeriod", "CpuCfsQuota", "CPUShares", "CPUSet", "PidsLimit", "OomKillDisable", "BridgeNfIptables", "BridgeNfIp6tables", "IPv4Forwarding"} {
		delete(v, limit)
	}
}

// rewriteImage turns a Linux image into a Windows image. Without an os.version it gets the host's.
func (e *Engine) rewriteImage(v map[string]any) {
	v["Os"], v["OsVersion"] = "windows", e.osVersion()
	if version := imageVersion(v); version != "" {
		v["OsVersion"] = version
	}
	v["GraphDriver"] = map[string]any{"Name": "windowsfilter", "Data": map[string]string{"dir": `C:\ProgramData\docker\windowsfilter`}}
}

// versionLabel is the label that gives a test image its os.version, in place of the manifest.
const versionLabel = "winkube.test/os.version"

func imageVersion(v map[string]any) string {
	config, _ := v["Config"].(map[string]any)
	labels, _ := config["Labels"].(map[string]any)
	version, _ := labels[versionLabel].(string)
	return version
}
