package firewalld

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
	"k8s.io/klog/v2"
)

// Names of firewalld on the bus (firewalld.dbus(5)).
const (
	busName   = "org.fedoraproject.FirewallD1"
	path      = "/org/fedoraproject/FirewallD1"
	zones     = busName + ".zone"
	policies  = busName + ".policy"
	reloaded  = busName + ".Reloaded"
	nameOwner = "org.freedesktop.DBus.NameOwnerChanged"
)

// systemBus returns the address of the system's message bus, "" on a host without one. The variable is D-Bus's own (dbus-daemon(1)).
func systemBus() string {
	const socket = "/run/dbus/system_bus_socket"
	if address := os.Getenv("DBUS_SYSTEM_BUS_ADDRESS"); address != "" {
		return address
	}
	if _, err := os.Stat(socket); err != nil {
		return ""
	}
	return "unix:path=" + socket
}

// retry is the pause before reconnecting to the bus.
const retry = 30 * time.Second

// Keep keeps the bridge in Zone until ctx ends, over starts and reloads of firewalld. A zone that an administrator has given it stays. It returns nil
// immediately on a host without a system bus, where there is no firewalld.
func Keep(ctx context.Context, bridge string) error {
	address := systemBus()
	if address == "" {
		return nil
	}
	told := false
	for {
		err := keep(ctx, address, bridge)
		if ctx.Err() != nil {
			return nil
		}
		if !told {
			klog.ErrorS(err, "Cannot ask the message bus about firewalld; if it runs, put the pods' bridge into a zone that accepts: firewall-cmd --zone="+Zone+" --add-interface="+bridge)
			told = true
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(retry):
		}
	}
}

// keep is Keep on one connection; it returns when that breaks.
func keep(ctx context.Context, address, bridge string) error {
	conn, err := dbus.Connect(address, dbus.WithContext(ctx))
	if err != nil {
		return err
	}
	defer conn.Close()
	signals := make(chan *dbus.Signal, 10)
	conn.Signal(signals)
	owner := []dbus.MatchOption{dbus.WithMatchInterface("org.freedesktop.DBus"), dbus.WithMatchMember("NameOwnerChanged"), dbus.WithMatchArg(0, busName)}
	reload := []dbus.MatchOption{dbus.WithMatchInterface(busName), dbus.WithMatchMember("Reloaded")}
	if err := errors.Join(conn.AddMatchSignalContext(ctx, owner...), conn.AddMatchSignalContext(ctx, reload...)); err != nil {
		return err
	}
	add(ctx, conn, bridge)
	for signal := range signals {
		switch signal.Name {
		case reloaded:
			add(ctx, conn, bridge)
		case nameOwner: // name, old owner, new owner
			if len(signal.Body) == 3 && signal.Body[2] != "" {
				add(ctx, conn, bridge)
			}
		}
	}
	return errors.New("the connection to the message bus broke")
}

// add gives the bridge its zone if firewalld runs and the bridge has none.
func add(ctx context.Context, conn *dbus.Conn, bridge string) {
	switch had, err := zoneOf(ctx, conn, bridge); {
	case err != nil:
		klog.ErrorS(err, "Cannot put the pods' bridge into a zone of firewalld that accepts; run: firewall-cmd --zone="+Zone+" --add-interface="+bridge)
	case had == "":
		klog.InfoS("Put the pods' bridge into a zone of firewalld", "bridge", bridge, "zone", Zone)
	case had != absent:
		klog.V(2).InfoS("The pods' bridge has a zone of firewalld", "bridge", bridge, "zone", had)
	}
}

// absent stands for the zone of an interface when firewalld does not run.
const absent = "-"

// zoneOf returns the zone that the bridge had: "" if it had none, and is in Zone now.
func zoneOf(ctx context.Context, conn *dbus.Conn, bridge string) (had string, err error) {
	var runs bool
	if err := conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.NameHasOwner", 0, busName).Store(&runs); err != nil || !runs {
		return absent, err
	}
	firewall := conn.Object(busName, path)
	if err := firewall.CallWithContext(ctx, zones+".getZoneOfInterface", 0, bridge).Store(&had); err != nil || had != "" {
		return had, described(err)
	}
	return "", described(firewall.CallWithContext(ctx, zones+".addInterface", 0, Zone, bridge).Err)
}

// dockerPolicy is Docker's policy that forwards from every zone to its own (moby, libnetwork/iptables/firewalld.go, from 27 on).
const dockerPolicy = "docker-forwarding"

// Look asks firewalld about the bridge and the ranges. On a host without firewalld, or without a message bus, it does not run.
func Look(ctx context.Context, bridge string, ranges []netip.Prefix) (State, error) {
	address := systemBus()
	if address == "" {
		return State{}, nil
	}
	return look(ctx, address, bridge, ranges)
}

func look(ctx context.Context, address, bridge string, ranges []netip.Prefix) (State, error) {
	s := State{Sources: map[netip.Prefix]string{}}
	conn, err := dbus.Connect(address, dbus.WithContext(ctx))
	if err != nil {
		return s, err
	}
	defer conn.Close()
	if err := conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.NameHasOwner", 0, busName).Store(&s.Runs); err != nil || !s.Runs {
		return s, err
	}
	firewall := conn.Object(busName, path)
	if err := firewall.CallWithContext(ctx, zones+".getZoneOfInterface", 0, bridge).Store(&s.Bridge); err != nil {
		return s, described(err)
	}
	for _, r := range ranges {
		var zone string
		if err := firewall.CallWithContext(ctx, zones+".getZoneOfSource", 0, r.String()).Store(&zone); err != nil {
			return s, described(err)
		}
		if zone != "" {
			s.Sources[r] = zone
		}
	}
	var names []string
	if err := firewall.CallWithContext(ctx, policies+".getPolicies", 0).Store(&names); err == nil { // firewalld before 0.9 has no policies
		s.Docker = slices.Contains(names, dockerPolicy)
	}
	return s, nil
}

// described adds what firewalld says about an error, which godbus leaves in its body.
func described(err error) error {
	var fault dbus.Error
	if !errors.As(err, &fault) || len(fault.Body) == 0 {
		return err
	}
	return fmt.Errorf("%s: %s", fault.Name, strings.Trim(fmt.Sprint(fault.Body...), "[]"))
}
