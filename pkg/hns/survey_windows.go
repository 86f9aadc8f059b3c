package hns

import (
	"errors"
	"fmt"
	"strings"

	"github.com/Microsoft/hcsshim"
	"github.com/Microsoft/hcsshim/hcn"
	"golang.org/x/sys/windows"
)

// Survey reads all objects of HNS with both versions of its API and returns its version; "": not reported. It is for
// recordings of a host.
func Survey() (version string, err error) {
	_, networks := hcsshim.HNSListNetworkRequest("GET", "", "")
	_, endpoints := hcsshim.HNSListEndpointRequest()
	_, lists := hcsshim.HNSListPolicyListRequest()
	err = known("cannot list what HNS has", errors.Join(networks, endpoints, lists))
	if windows.NewLazySystemDLL("computenetwork.dll").Load() != nil {
		return "", err
	}
	globals, unknown := hcn.GetGlobals()
	if unknown == nil {
		version = fmt.Sprintf("%d.%d", globals.Version.Major, globals.Version.Minor)
	}
	_, networks = hcn.ListNetworks()
	_, endpoints = listed(hcn.ListEndpoints)
	_, balancers := hcn.ListLoadBalancers()
	return version, errors.Join(err, unknown, known("cannot list what HNS has", errors.Join(networks, endpoints, balancers)))
}

// Exists reports whether HNS has a network of that name.
func Exists(name string) (bool, error) {
	found, err := internal(name)
	return found != nil, err
}

// Forget removes the network of that name, whatever its kind, with its endpoints. A missing network is not an error.
func Forget(name string) error {
	found, err := internal(name)
	if found == nil || err != nil {
		return err
	}
	endpoints, err := hcsshim.HNSListEndpointRequest()
	if err != nil {
		return known("cannot list endpoints", err)
	}
	for i := range endpoints {
		if strings.EqualFold(endpoints[i].VirtualNetwork, found.Id) {
			_, failed := endpoints[i].Delete()
			err = errors.Join(err, gone(known("cannot delete endpoint "+endpoints[i].Id, failed)))
		}
	}
	_, failed := found.Delete()
	return errors.Join(err, gone(known(fmt.Sprintf("cannot delete network %q", name), failed)))
}
