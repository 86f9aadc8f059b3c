package cri

import (
	"fmt"
	"net"
	"strings"
)

// Listen opens an endpoint as kubeadm's criSocket names it: unix:///path or npipe:////./pipe/name.
func Listen(endpoint string) (net.Listener, error) {
	scheme, path, ok := strings.Cut(endpoint, "://")
	want, _, _ := strings.Cut(DefaultEndpoint, "://")
	if !ok || scheme != want || path == "" {
		return nil, fmt.Errorf("%q: want %s://... as in %s", endpoint, want, DefaultEndpoint)
	}
	listener, err := listen(systemPath(scheme, path))
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w", endpoint, err)
	}
	return listener, nil
}

// systemPath is the path of an endpoint as the system names it: pipes have backslashes.
func systemPath(scheme, path string) string {
	if scheme == "npipe" {
		return strings.ReplaceAll(path, "/", `\`)
	}
	return path
}
