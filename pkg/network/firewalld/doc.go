// Package firewalld keeps the pods' bridge in a zone of firewalld that accepts, as Docker keeps its bridges.
//
//	firewalld (starts, reloads) --D-Bus--> Keep --> bridge in zone trusted        firewalld --D-Bus--> Look --> State, for the doctor
//
// Only a bridge that the kubelet makes needs it. firewalld rejects what an interface without a zone receives, and forgets at each start and reload what was
// set at run time.
package firewalld

import "net/netip"

// Zone is the zone of firewalld that accepts every packet (firewalld.zones(5)).
const Zone = "trusted"

// State is what firewalld has for pods.
type State struct {
	Runs    bool
	Bridge  string                  // zone of the pods' bridge; "": none
	Sources map[netip.Prefix]string // zones of ranges as sources; none for ranges without one
	Docker  bool                    // Docker has every zone's packets forwarded to its bridges, as Docker 27 and later do
}
