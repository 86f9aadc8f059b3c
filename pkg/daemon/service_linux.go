package daemon

import "github.com/spf13/cobra"

// AddServiceCommand adds nothing: on Linux systemd units start the programs.
func AddServiceCommand(*cobra.Command, Program) {}

// Installed returns nothing: on Linux systemd's files have the flags.
func Installed(string) (flags, env []string, err error) { return nil, nil, nil }
