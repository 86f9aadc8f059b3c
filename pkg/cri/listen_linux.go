package cri

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// DefaultEndpoint is where kubeadm looks for Docker.
const DefaultEndpoint = "unix:///var/run/cri-dockerd.sock"

// listen opens a socket that only root can use. It first removes a socket that an earlier process left.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("%s is not a socket: remove it, or choose another path", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = listener.Close()
		return nil, err
	}
	return listener, nil
}
