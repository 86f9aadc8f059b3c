package daemon

import (
	"context"
	"time"

	"github.com/spf13/pflag"
)

// addServiceFlag adds nothing: init systems use signals.
func addServiceFlag(*pflag.FlagSet) {}

func serve(_ string, _ *pflag.FlagSet, run func(context.Context) error) error { return console(run) }

// AsService returns false: only Windows' service manager needs it.
func AsService(*pflag.FlagSet) bool { return false }

// systemBus is the address of D-Bus.
const systemBus = "unix:path=/run/dbus/system_bus_socket"

// UntilShutdown returns a ctx that also ends, with the cause ErrShutdown, when the host shuts down. It asks systemd-logind to delay the shutdown
// until this program has ended, for at least grace, by LogindConfig if need be; without logind it logs that, and nothing else changes. stop ends the context and frees
// its resources, but does not release the delay of a shutdown that has begun.
func UntilShutdown(ctx context.Context, who string, grace time.Duration) (_ context.Context, stop func()) {
	return untilLogind(ctx, systemBus, LogindConfig, who, grace)
}
