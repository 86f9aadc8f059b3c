package daemon

import (
	"context"
	"time"

	"github.com/spf13/pflag"
)

// addServiceFlag adds nothing: init systems speak with signals.
func addServiceFlag(*pflag.FlagSet) {}

func serve(_ string, _ *pflag.FlagSet, run func(context.Context) error) error { return console(run) }

// AsService is for Windows' service manager; init systems start a program as anybody does.
func AsService(*pflag.FlagSet) bool { return false }

// systemBus is where programs find D-Bus.
const systemBus = "unix:path=/run/dbus/system_bus_socket"

// UntilShutdown is ctx, but that it ends with ErrShutdown as its cause when the host shuts down. systemd-logind is asked to wait with that until
// this program has ended, for as long as it allows; where there is no logind, the log says so, and nothing is different. stop ends the context
// and frees what it needs, but for the delay of a shutdown that has begun.
func UntilShutdown(ctx context.Context, who string, grace time.Duration) (_ context.Context, stop func()) {
	return untilLogind(ctx, systemBus, who, grace)
}
