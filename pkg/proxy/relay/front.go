package relay

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/relay/choose"
	"github.com/winkube/winkube/pkg/proxy/relay/limits"
)

// Front is one served front of the Table: its sockets, one per address, and the connections and sessions that arrived
// through them.
//
//	set(route, places) ... set ... --> close
//
// Relay.Sync calls set and close; its Carrier reads the exported fields and calls the exported methods, from any
// goroutine.
type Front struct {
	*Shared
	Protocol v1.Protocol // TCP or UDP
	Chooser  *choose.Chooser

	account *limits.Front
	sockets []listening // for Sync only; usually one, for which a map would be large
	carrier Carrier
	warned  atomic.Int64 // time of the last warning about source ports to its Service, in nanoseconds
}

// listening is a Socket with its Place.
type listening struct {
	Place
	socket Socket
	silent Silence
	near   []netip.Prefix // Shared.Near, when it became silent
}

// set serves route at places. Sockets whose place stays are kept, with their backlog and connections. A Route without
// back ends has no sockets, so that the kernel itself refuses (reset, or port unreachable), unless it drops: then they
// are silent. The kernel sends nothing from an address that is not local: there, rules of the guard refuse TCP, and the
// carrier refuses UDP. set notifies connections whose endpoint is no longer in the Route. The caller must not change
// route afterwards.
func (f *Front) set(route *proxy.Route, places []Place) error {
	if before := f.Chooser.Route(); before == nil || !before.Equal(route) {
		f.Chooser.Set(route)
		f.carrier.Changed()
	} else {
		f.Chooser.Expire()
	}
	silent := silenceOf(route)
	if len(route.Backends) == 0 && !route.Drop {
		places = slices.DeleteFunc(places, func(at Place) bool { return !at.Port || f.Protocol != v1.ProtocolUDP })
	}
	f.sockets = slices.DeleteFunc(f.sockets, func(l listening) bool {
		gone := !slices.Contains(places, l.Place)
		if gone {
			f.shut(l)
		}
		return gone
	})
	var errs []error
	for i := range f.sockets {
		errs = append(errs, f.sockets[i].silence(silent, f.Near.Ranges()))
	}
	for _, at := range places {
		if slices.ContainsFunc(f.sockets, func(l listening) bool { return l.Place == at }) {
			continue
		}
		s, err := f.carrier.Listen(at, silent)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		f.sockets = append(f.sockets, listening{at, s, silent, f.Near.Ranges()})
		f.own.add(Port{f.Protocol, at.Addr})
	}
	return errors.Join(errs...)
}

// silenceOf returns towards whom a front without back ends is silent. Clients on this node may have some (Near).
func silenceOf(route *proxy.Route) Silence {
	switch {
	case len(route.Backends) > 0 || !route.Drop:
		return Hears
	case len(route.Near) > 0:
		return DeafToFar
	}
	return DeafToEach
}

func (l *listening) silence(towards Silence, near []netip.Prefix) error {
	s, ok := l.socket.(Silencer)
	if !ok || l.silent == towards && (towards != DeafToFar || slices.Equal(l.near, near)) {
		return nil
	}
	if err := s.Silence(towards); err != nil {
		return fmt.Errorf("cannot change whether %s is silent: %w", l.Addr, err)
	}
	l.silent, l.near = towards, near
	return nil
}

func (f *Front) shut(l listening) {
	f.own.remove(Port{f.Protocol, l.Addr})
	l.socket.Close()
}

// close ends the front and everything that arrived through it.
func (f *Front) close() {
	for _, l := range f.sockets {
		f.shut(l)
	}
	f.sockets = nil
	f.carrier.Close()
	f.Chooser.Close()
}
