package daemon

import "github.com/spf13/cobra"

// AddServiceCommand adds nothing: on Linux systemd units start the programs.
func AddServiceCommand(*cobra.Command, Program) {}
