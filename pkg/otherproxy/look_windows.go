package otherproxy

import (
	"context"
	"errors"

	"github.com/winkube/winkube/pkg/hns"
)

// Look reads this host. ours is the network of HNS whose load balancers our proxy owns; "": it owns none.
func Look(_ context.Context, ours string) Found {
	list, err := hns.Listings()
	if err != nil && !errors.Is(err, hns.ErrNoContainers) {
		return Found{Unread: []string{"load balancers of HNS: " + err.Error()}}
	}
	return foundIn(list, ours)
}
