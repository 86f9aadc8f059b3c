package pod

import (
	"cmp"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Started says whether the attempt got as far as a start: a container whose start failed did.
func (c *Container) Started() bool { return c.State != Created || c.Error != "" }

// NewestSandbox is the sandbox made last; nil: there is none. It belongs to o.
func (o *Observed) NewestSandbox() *Sandbox {
	var newest *Sandbox
	for i := range o.Sandboxes {
		if s := &o.Sandboxes[i]; newest == nil || s.Attempt > newest.Attempt {
			newest = s
		}
	}
	return newest
}

// Attempts lists the started attempts of the container of that name, newest first.
func (o *Observed) Attempts(name string) []Container {
	var list []Container
	for i := range o.Containers {
		if c := &o.Containers[i]; c.Name == name && c.Started() {
			list = append(list, *c)
		}
	}
	slices.SortStableFunc(list, func(a, b Container) int { return cmp.Compare(b.Attempt, a.Attempt) })
	return list
}

// PodAddresses are the pod's addresses as its status shows them: one of each family, that of the node's first address first. Empty
// while there is none.
func PodAddresses(pod *v1.Pod, observed Observed, hostIPs []netip.Addr) []netip.Addr {
	if pod.Spec.HostNetwork {
		return hostIPs
	}
	var all []netip.Addr
	if box := observed.NewestSandbox(); box != nil && box.Running {
		all = box.Addresses
	} else if box == nil {
		for _, c := range observed.Containers {
			if c.State == Running && len(c.Addresses) > 0 {
				all = c.Addresses
				break
			}
		}
	}
	v6First := len(hostIPs) > 0 && hostIPs[0].Is6() && !hostIPs[0].Is4In6()
	var out []netip.Addr
	for _, v6 := range []bool{v6First, !v6First} {
		for _, a := range all {
			if a = a.Unmap(); a.Is6() == v6 {
				out = append(out, a)
				break
			}
		}
	}
	return out
}
