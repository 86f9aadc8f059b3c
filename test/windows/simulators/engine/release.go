package engine

import "fmt"

// release is what one Windows Server and the Docker that its users have say of themselves.
type release struct {
	docker, api, minAPI string
	display             string // DisplayVersion or ReleaseId of the registry
	ubr                 int    // update build revision
	branch              string // of BuildLabEx
}

// releases pairs each Server with the newest Docker for it. Sources: moby daemon/daemon_windows.go checkSystem (28 needs 17763),
// Docker EE's and Mirantis' compatibility matrices (17.06 to 20.10 for 2016), docs.docker.com/reference/api/engine/#api-version-matrix.
var releases = map[int]release{
	14393: {"17.06.2-ee-25", "1.30", "1.24", "1607", 7876, "rs1_release"},
	17763: {"19.03.18", "1.40", "1.24", "1809", 7009, "rs5_release"},
	20348: {"20.10.24", "1.41", "1.24", "21H2", 3328, "fe_release"},
	26100: {"28.5.2", "1.51", "1.24", "24H2", 3476, "ge_release"},
}

// sharedNetworks is the first build whose containers can join another's network: version 1709. Source: Kubernetes 1.9's page on Windows
// Server containers ("unlocks key capabilities like shared network namespace"); named pipe mounts came with the same build (moby/moby#33852).
const sharedNetworks = 16299

// kernelVersion is worded by moby pkg/parsers/kernel/kernel_windows.go.
func (e *Engine) kernelVersion() string {
	return fmt.Sprintf("10.0 %d (%d.%d.amd64fre.%s)", e.opts.Build, e.opts.Build, e.facts.ubr, e.facts.branch)
}

// operatingSystem is worded by moby pkg/parsers/operatingsystem/operatingsystem_windows.go.
func (e *Engine) operatingSystem() string {
	return fmt.Sprintf("Microsoft Windows Server Version %s (OS Build %d.%d)", e.facts.display, e.opts.Build, e.facts.ubr)
}

// osVersion is what images of this host say.
func (e *Engine) osVersion() string { return fmt.Sprintf("10.0.%d.%d", e.opts.Build, e.facts.ubr) }

// rewriteVersion makes /version's answer that of Windows.
func (e *Engine) rewriteVersion(v map[string]any) {
	v["Version"], v["ApiVersion"], v["MinAPIVersion"], v["Os"], v["KernelVersion"] = e.facts.docker, e.facts.api, e.facts.minAPI, "windows", e.kernelVersion()
	v["Platform"] = map[string]string{"Name": "Docker Engine"}
	delete(v, "Components") // each names Linux; clients of this API read the fields beside
}

// rewriteInfo makes /info's answer that of Windows. Sources: moby daemon/info.go and info_windows.go; drivers: libnetwork/drivers_windows.go.
func (e *Engine) rewriteInfo(v map[string]any) {
	for _, linux := range []string{"CgroupDriver", "CgroupVersion", "RuncCommit", "ContainerdCommit", "InitCommit", "InitBinary", "Runtimes", "DefaultRuntime", "Containerd", "SecurityOptions", "DriverStatus"} {
		delete(v, linux)
	}
	v["OSType"], v["OperatingSystem"], v["KernelVersion"], v["OSVersion"] = "windows", e.operatingSystem(), e.kernelVersion(), fmt.Sprintf("%d", e.opts.Build)
	v["Isolation"], v["ServerVersion"] = e.opts.Isolation, e.facts.docker
	v["Driver"], v["DockerRootDir"] = "windowsfilter", `C:\ProgramData\docker`
	v["DriverStatus"] = [][]string{{"Windows", ""}}
	v["SecurityOptions"] = []string{}
	v["Plugins"] = map[string]any{
		"Volume": []string{"local"}, "Network": drivers, "Authorization": nil,
		"Log": []string{"awslogs", "etwlogs", "fluentd", "gcplogs", "gelf", "json-file", "local", "splunk", "syslog"},
	}
	for _, limit := range []string{"MemoryLimit", "SwapLimit", "KernelMemory", "CpuCfsPeriod", "CpuCfsQuota", "CPUShares", "CPUSet", "PidsLimit", "OomKillDisable", "BridgeNfIptables", "BridgeNfIp6tables", "IPv4Forwarding"} {
		delete(v, limit)
	}
}

// rewriteImage makes an image one of Windows; one that says no os.version is of this host's.
func (e *Engine) rewriteImage(v map[string]any) {
	v["Os"], v["OsVersion"] = "windows", e.osVersion()
	if version := imageVersion(v); version != "" {
		v["OsVersion"] = version
	}
	v["GraphDriver"] = map[string]any{"Name": "windowsfilter", "Data": map[string]string{"dir": `C:\ProgramData\docker\windowsfilter`}}
}

// versionLabel is how a test's image says which os.version its manifest would have.
const versionLabel = "winkube.test/os.version"

func imageVersion(v map[string]any) string {
	config, _ := v["Config"].(map[string]any)
	labels, _ := config["Labels"].(map[string]any)
	version, _ := labels[versionLabel].(string)
	return version
}
