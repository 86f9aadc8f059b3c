// Package hcs reads the resource usage of containers from the Windows Host Compute Service, because engines take
// seconds for each container. It also maintains the credential specs that engines read from the Windows registry.
//
//	vmcompute.dll --> Statistics --> stats
//	docker --> KeepCredentialSpecs --> registry --> engine
package hcs

import "time"

// Statistics is a container's resource usage since it started.
type Statistics struct {
	CPU               time.Duration // of all processors
	Commit            uint64        // committed bytes
	PrivateWorkingSet uint64        // bytes in memory that are not shared
	Endpoints         []Endpoint    // of its network; none if it uses the network of another container
}

// Endpoint is the traffic of one HNS endpoint: bytes and dropped packets.
type Endpoint struct {
	ID                                     string
	RxBytes, TxBytes, RxDropped, TxDropped uint64
}
