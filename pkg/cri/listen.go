package cri

import (
	"fmt"
	"net"
	"strings"
)

// CheckEndpoint checks an endpoint for Listen.
func CheckEndpoint(endpoint string) error {
	scheme, path, ok := strings.Cut(endpoint, "://")
	want, _, _ := strings.Cut(DefaultEndpoint, "://")
	if !ok || scheme != want || path == "" {
		return fmt.Errorf("%q: want %s://... as in %s", endpoint, want, DefaultEndpoint)
	}
	return nil
}

// Listen opens an endpoint in the form of kubeadm's criSocket: unix:///path or npipe:////./pipe/name.
func Listen(endpoint string) (net.Listener, error) {
	if err := CheckEndpoint(endpoint); err != nil {
		return nil, err
	}
	scheme, path, _ := strings.Cut(endpoint, "://")
	listener, err := listen(systemPath(scheme, path))
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", endpoint, err)
	}
	return listener, nil
}

// systemPath is the system's path of an endpoint: pipes have backslashes.
func systemPath(scheme, path string) string {
	if scheme == "npipe" {
		return strings.ReplaceAll(path, "/", `\`)
	}
	return path
}
