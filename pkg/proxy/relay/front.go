package relay

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/relay/choose"
	"github.com/winkube/winkube/pkg/proxy/relay/limits"
)

// Front is one front of the Table as it is served: its sockets, one for each address, and what came in through them.
//
//	set(route, places) ... set ... --> close
//
// Relay.Sync calls set and close; its Carrier reads the exported fields and calls the exported methods, from any goroutine.
type Front struct {
	*Shared
	Protocol v1.Protocol // TCP or UDP
	Chooser  *choose.Chooser

	account *limits.Front
	sockets []listening // of Sync only; mostly one, for which a map would be large
	carrier Carrier
	warned  atomic.Int64 // when its Service was last warned of source ports, in nanoseconds
}

// listening is a Socket and where it listens.
type listening struct {
	Place
	socket Socket
	silent bool
}

// set serves route on places. Sockets whose place stays are kept, with their backlog and connections. A Route without backends has no
// sockets, so that the kernel itself refuses (reset, or port unreachable), unless it drops: then they are silent. The kernel sends nothing from an
// address that is not local: at such a one rules of the guard refuse TCP, and the carrier UDP. Connections to an endpoint that is not in the Route any
// more are told so. route is not changed any more.
func (f *Front) set(route *proxy.Route, places []Place) error {
	if before := f.Chooser.Route(); before == nil || !before.Equal(route) {
		f.Chooser.Set(route)
		f.carrier.Changed()
	} else {
		f.Chooser.Expire()
	}
	silent := len(route.Backends) == 0 && route.Drop
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
		errs = append(errs, f.sockets[i].silence(silent))
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
		f.sockets = append(f.sockets, listening{at, s, silent})
		f.own.add(Port{f.Protocol, at.Addr})
	}
	return errors.Join(errs...)
}

func (l *listening) silence(on bool) error {
	s, ok := l.socket.(Silencer)
	if !ok || l.silent == on {
		return nil
	}
	if err := s.Silence(on); err != nil {
		return fmt.Errorf("cannot change whether %s is silent: %w", l.Addr, err)
	}
	l.silent = on
	return nil
}

func (f *Front) shut(l listening) {
	f.own.remove(Port{f.Protocol, l.Addr})
	l.socket.Close()
}

// close ends the front and everything that came in through it.
func (f *Front) close() {
	for _, l := range f.sockets {
		f.shut(l)
	}
	f.sockets = nil
	f.carrier.Close()
	f.Chooser.Close()
}
