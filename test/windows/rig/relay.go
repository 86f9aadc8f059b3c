package rig

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
)

// DockerPipe is where Docker listens on Windows.
const DockerPipe = `\\.\pipe\docker_engine`

// Relay makes a named pipe of the prefix lead to a TCP address, as seen from the prefix's network. It is served when Relay returns, until
// stop is called or the prefix ends.
func (p *Prefix) Relay(ctx context.Context, pipe, address string) (stop func(), err error) {
	cmd, _, err := p.stay(ctx, "relay", pipe, address)
	if err != nil {
		return nil, fmt.Errorf("cannot relay %s: %w", pipe, err)
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}, nil
}

// stay starts the rig's own program to stay, and returns it with its input when it has said that it is ready. Where it ends before, Wine has ended
// it before it ran, as in ask, and it is started again.
func (p *Prefix) stay(ctx context.Context, args ...string) (cmd *exec.Cmd, input io.WriteCloser, err error) {
	for range attempts {
		cmd = p.Command(context.WithoutCancel(ctx), p.guest, args...)
		if input, err = cmd.StdinPipe(); err != nil {
			return nil, nil, err
		}
		if err = started(cmd); err == nil {
			return cmd, input, nil
		}
	}
	return nil, nil, err
}

// started starts a program and waits for its first line, which says that it is ready.
func started(cmd *exec.Cmd) error {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		_ = cmd.Process.Kill()
		return fmt.Errorf("it ended before it was ready: %v: %q", cmd.Wait(), line)
	}
	return nil
}
