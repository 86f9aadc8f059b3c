package usage

// mounts returns nothing: Windows engines mount no root file systems from containerd's store.
func mounts() (string, error) { return "", nil }
