package daemon

import (
	"context"

	"github.com/spf13/pflag"
)

// addServiceFlag adds nothing: init systems speak with signals.
func addServiceFlag(*pflag.FlagSet) {}

func serve(_ string, _ *pflag.FlagSet, run func(context.Context) error) error { return console(run) }

// AsService is for Windows' service manager; init systems start a program as anybody does.
func AsService(*pflag.FlagSet) bool { return false }
