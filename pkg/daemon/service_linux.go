package daemon

import "github.com/spf13/cobra"

// AddServiceCommand adds nothing: on Linux a unit of systemd starts the programs.
func AddServiceCommand(*cobra.Command, Program) {}
