package app

// Windows has no resolv.conf; containers get their DNS servers through the engine.
func defaultRootDir() string    { return `C:\var\lib\kubelet` }
func defaultResolvConf() string { return "" }
func defaultPodLogsDir() string { return `C:\var\log\pods` }
