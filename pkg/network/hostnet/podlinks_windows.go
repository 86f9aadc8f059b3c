package hostnet

import "github.com/winkube/winkube/pkg/network/podlink"

// PodLinks returns nil: on Windows this program creates no interfaces with netlink.
func PodLinks() podlink.Kernel { return nil }

// RemovePodLinks removes nothing: there are none.
func RemovePodLinks() (removed []string, err error) { return nil, nil }
