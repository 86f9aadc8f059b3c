// Package csi says what the node knows of CSI drivers: which are registered, and how their node service is called. It does nothing by itself.
package csi

import pb "github.com/container-storage-interface/spec/lib/go/csi"

// Driver is the node service of a registered driver. It is safe for concurrent use; it stays valid until the driver is replaced or gone,
// and then its calls fail.
type Driver interface {
	Name() string
	// NodeID is what NodeGetInfo answered.
	NodeID() string
	// Node is the gRPC client of the node service. Each call needs a context with a deadline (upstream: 2 min).
	Node() pb.NodeClient
	// Has says whether NodeGetCapabilities named c; it was asked at registration.
	Has(c pb.NodeServiceCapability_RPC_Type) bool
}

// Drivers finds registered drivers.
type Drivers interface {
	// Driver is the driver of that name, or an error with upstream's words: driver name NAME not found in the list of registered CSI drivers.
	Driver(name string) (Driver, error)
}
