package san

import (
	"errors"

	"github.com/winkube/winkube/pkg/volume"
	"github.com/winkube/winkube/pkg/wake"
)

// Kinds are none: CSI and flexVolume drivers have such disks on Windows.
func Kinds(volume.Host, Objects, wake.Signal) []NodeKind { return nil }

// Host has nothing.
func Host() System {
	return System{
		Write:   func(string, string) error { return errors.ErrUnsupported },
		Claimed: func(string) (bool, error) { return false, errors.ErrUnsupported },
		Events:  func() (<-chan struct{}, func(), error) { return nil, nil, errors.ErrUnsupported },
	}
}
