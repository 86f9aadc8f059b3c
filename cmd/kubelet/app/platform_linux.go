package app

// The default paths of upstream's kubelet and the distributions on Linux.
func defaultRootDir() string    { return "/var/lib/kubelet" }
func defaultResolvConf() string { return "/etc/resolv.conf" }
func defaultPodLogsDir() string { return "/var/log/pods" }
func defaultKubeadmDir() string { return "/etc/kubernetes" }
func defaultVolumePluginDir() string {
	return "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"
}
