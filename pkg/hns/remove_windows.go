package hns

import (
	"errors"
	"fmt"
	"strings"

	"github.com/Microsoft/hcsshim"
)

// RemoveNetwork removes the networks of that name with their endpoints, including the host's, with the first version of
// the HNS API, which all versions of Windows have. removed is false if there is no such network or no Containers
// feature.
func RemoveNetwork(name string) (removed bool, err error) {
	networks, err := hcsshim.HNSListNetworkRequest("GET", "", "")
	if err != nil {
		if err = known("cannot list networks", err); errors.Is(err, ErrNoContainers) {
			return false, nil
		}
		return false, err
	}
	for _, n := range networks {
		if n.Name != name {
			continue
		}
		if err := removeEndpoints(n.Id); err != nil {
			return false, err
		}
		if _, err := hcsshim.HNSNetworkRequest("DELETE", n.Id, ""); err != nil {
			return false, fmt.Errorf("cannot delete network %s: %w", name, err)
		}
		removed = true
	}
	return removed, nil
}

func removeEndpoints(network string) error {
	list, err := hcsshim.HNSListEndpointRequest()
	if err != nil {
		return known("cannot list endpoints", err)
	}
	for _, e := range list {
		if !strings.EqualFold(e.VirtualNetwork, network) {
			continue
		}
		if _, err := hcsshim.HNSEndpointRequest("DELETE", e.Id, ""); err != nil {
			return fmt.Errorf("cannot delete endpoint %s: %w", e.Name, err)
		}
	}
	return nil
}
