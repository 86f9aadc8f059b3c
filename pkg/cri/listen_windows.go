package cri

import (
	"net"

	"github.com/Microsoft/go-winio"
)

// DefaultEndpoint is where kubeadm looks for Docker.
const DefaultEndpoint = "npipe:////./pipe/cri-dockerd"

// administrators grants access to the pipe only to administrators and the system (SDDL: protected, full access for BA and SY).
const administrators = "D:P(A;;GA;;;BA)(A;;GA;;;SY)"

func listen(path string) (net.Listener, error) {
	return winio.ListenPipe(path, &winio.PipeConfig{SecurityDescriptor: administrators})
}
