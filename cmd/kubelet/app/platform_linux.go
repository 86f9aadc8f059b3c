package app

import "golang.org/x/sys/unix"

// The default paths of upstream's kubelet and the distributions on Linux.
func defaultRootDir() string    { return "/var/lib/kubelet" }
func defaultResolvConf() string { return "/etc/resolv.conf" }
func defaultPodLogsDir() string { return "/var/log/pods" }
func defaultKubeadmDir() string { return "/etc/kubernetes" }
func defaultVolumePluginDir() string {
	return "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"
}

// limitFiles sets how many files this process and those that it starts may have open. It never lowers the limit that a process may raise again.
func limitFiles(number uint64) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: number, Max: max(number, limit.Max)})
}
