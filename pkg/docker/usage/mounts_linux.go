package usage

import "os"

// mounts reads this host's mount table.
func mounts() (string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	return string(data), err
}
