// Package hcs reads what containers use from the Host Compute Service of Windows, which has the figures at hand: engines take seconds for
// each container. It also keeps the credential specs that engines read from Windows' registry.
//
//	vmcompute.dll --> Statistics --> stats
//	docker --> KeepCredentialSpecs --> registry --> engine
package hcs

import "time"

// Statistics is what a container has used since it started.
type Statistics struct {
	CPU               time.Duration // of all processors
	Commit            uint64        // bytes that it was promised
	PrivateWorkingSet uint64        // bytes in memory that it does not share
	Endpoints         []Endpoint    // of its network; none where it has that of another container
}

// Endpoint is what passed one endpoint of HNS. Packets that were dropped, beside bytes.
type Endpoint struct {
	ID                                     string
	RxBytes, TxBytes, RxDropped, TxDropped uint64
}
