package cgroup

import (
	"context"
	"errors"
	"fmt"
	"sync"

	systemdbus "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// bus is systemd on the system bus, or on its own socket if no bus runs. It connects at the first call, and again after the connection
// breaks.
type bus struct {
	dial func(context.Context) (*systemdbus.Conn, error)

	mu   sync.Mutex
	conn *systemdbus.Conn
}

func systemdUnits() units { return &bus{dial: systemdbus.NewWithContext} }

func (b *bus) connection() (*systemdbus.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil && b.conn.Connected() {
		return b.conn, nil
	}
	if b.conn != nil {
		b.conn.Close()
		b.conn = nil
	}
	conn, err := b.dial(context.Background()) // the connection outlives the call that opens it
	if err != nil {
		return nil, fmt.Errorf("cannot connect to systemd: %w", err)
	}
	b.conn = conn
	return conn, nil
}

func (b *bus) start(ctx context.Context, unit string, list []property) error {
	conn, err := b.connection()
	if err != nil {
		return err
	}
	result := make(chan string, 1) // the library holds it until the job ends, and never blocks on it
	if _, err := conn.StartTransientUnitContext(ctx, unit, "replace", variants(list), result); err != nil {
		return named(err)
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("systemd has not started it yet: %w", context.Cause(ctx))
	case how := <-result:
		if how != "done" {
			return fmt.Errorf("systemd ended the job with %q", how)
		}
		return nil
	}
}

func (b *bus) change(ctx context.Context, unit string, list []property) error {
	conn, err := b.connection()
	if err != nil {
		return err
	}
	return named(conn.SetUnitPropertiesContext(ctx, unit, true, variants(list)...))
}

func (b *bus) stop(ctx context.Context, unit string) error {
	conn, err := b.connection()
	if err != nil {
		return err
	}
	_, err = conn.StopUnitContext(ctx, unit, "replace", nil)
	return named(err)
}

func variants(list []property) []systemdbus.Property {
	out := make([]systemdbus.Property, len(list))
	for i, p := range list {
		out[i] = systemdbus.Property{Name: p.name, Value: dbus.MakeVariant(p.value)}
	}
	return out
}

// named wraps the errors that callers distinguish, by their names on the bus (org.freedesktop.systemd1(5)).
func named(err error) error {
	var fault dbus.Error
	if !errors.As(err, &fault) {
		return err
	}
	switch fault.Name {
	case "org.freedesktop.systemd1.UnitExists":
		return fmt.Errorf("%w: %w", errUnitExists, err)
	case "org.freedesktop.systemd1.NoSuchUnit":
		return fmt.Errorf("%w: %w", errNoUnit, err)
	}
	return err
}
