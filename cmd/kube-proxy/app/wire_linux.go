package app

import (
	"context"
	"runtime"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/proxy/relay"
	"github.com/winkube/winkube/pkg/proxy/relay/addresses"
	"github.com/winkube/winkube/pkg/proxy/relay/epoll"
	"github.com/winkube/winkube/pkg/proxy/relay/tuning"
)

// newSystem has nothing: Linux is served by sockets alone.
func newSystem() system { return system{} }

// loops is how many the relay's plane has: one for each processor that this program may use, before tune gives it more.
func loops() int { return epoll.Loops(runtime.GOMAXPROCS(0)) }

// newPlane is what carries the relay's data.
func newPlane() relay.NewPlane { return epoll.New(loops()) }

// tune changes the settings of this program and of its host that the plane wants, and logs each of them.
func tune() {
	changes, err := tuning.Apply(loops())
	for _, c := range changes {
		klog.InfoS("Changed a setting for the relay", "setting", c.Name, "before", c.Before, "now", c.After)
	}
	if err != nil {
		klog.ErrorS(err, "Cannot change all kernel settings for the relay; serving Services without them")
	}
}

// untune restores the settings of the host that tune has changed, now or in a former run.
func untune() error { return tuning.Restore() }

// ownAddresses are those of a dummy interface, which is made with the first address.
func ownAddresses(context.Context) (relay.Addresses, error) { return addresses.New("") }

// removeOwn removes that interface, and the routes and rules beside it.
func removeOwn(ctx context.Context) error {
	own, err := addresses.New("")
	if err != nil {
		return err
	}
	return holdNothing(ctx, own)
}
