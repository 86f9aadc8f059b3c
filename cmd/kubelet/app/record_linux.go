package app

import (
	"context"

	"github.com/winkube/winkube/pkg/record"
)

// simulated returns false: nothing simulates a Linux host.
func simulated() bool { return false }

// refuseSystem returns nil: the engine's networks show whether a Linux host is a node.
func (*life) refuseSystem() error { return nil }

// systemSteps returns nil: on Linux, services involve neither an engine nor a recorded program.
func (*life) systemSteps() []record.Step { return nil }

func (*life) lookSystem(context.Context) error { return nil }

func (*life) forgetNetwork(string) error { return nil }

func (*life) measure(string) error { return nil }
