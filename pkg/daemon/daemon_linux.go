package daemon

import (
	"context"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

// addServiceFlag adds nothing: init systems speak with signals.
func addServiceFlag(*pflag.FlagSet) {}

func serve(_ string, _ *pflag.FlagSet, run func(context.Context) error) error { return console(run) }

// AsService is for Windows' service manager; init systems start a program as anybody does.
func AsService(*pflag.FlagSet) bool { return false }

// systemBus is where programs find D-Bus.
const systemBus = "/run/dbus/system_bus_socket"

// UntilShutdown is ctx, but that it ends with ErrShutdown as its cause when the host shuts down. systemd-logind is asked to wait with that until
// this program has ended, for as long as it allows; where there is no logind, the log says so, and nothing is different.
func UntilShutdown(ctx context.Context, who string, grace time.Duration) context.Context {
	return untilLogind(ctx, func() (busConn, error) { return dialBus(systemBus) }, who, grace)
}

func dialBus(path string) (busConn, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return unixBus{conn}, nil
}

// unixBus is a connection on which files come beside the bytes.
type unixBus struct{ *net.UnixConn }

// Read implements busConn.
func (b unixBus) Read(data []byte) (n int, files []*os.File, err error) {
	control := make([]byte, 1024)
	n, size, _, _, err := b.ReadMsgUnix(data, control)
	if err != nil {
		return n, nil, err
	}
	if n == 0 {
		return 0, nil, io.EOF
	}
	messages, err := syscall.ParseSocketControlMessage(control[:size])
	if err != nil {
		return n, nil, err
	}
	for i := range messages {
		fds, err := syscall.ParseUnixRights(&messages[i])
		if err != nil {
			continue // something else than files
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "from the bus"))
		}
	}
	return n, files, nil
}
