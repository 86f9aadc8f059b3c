package app

// Where upstream's kubelet and the distributions keep these on Linux.
func defaultRootDir() string    { return "/var/lib/kubelet" }
func defaultResolvConf() string { return "/etc/resolv.conf" }
func defaultPodLogsDir() string { return "/var/log/pods" }
