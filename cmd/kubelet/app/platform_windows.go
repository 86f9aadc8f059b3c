package app

// Windows has no resolv.conf; containers get their DNS servers through the engine.
func defaultRootDir() string    { return `C:\var\lib\kubelet` }
func defaultResolvConf() string { return "" }
func defaultPodLogsDir() string { return `C:\var\log\pods` }
func defaultKubeadmDir() string { return `C:\etc\kubernetes` }
func defaultVolumePluginDir() string {
	return `C:\usr\libexec\kubernetes\kubelet-plugins\volume\exec`
}

// limitFiles does nothing: Windows has no such limit.
func limitFiles(uint64) error { return nil }
