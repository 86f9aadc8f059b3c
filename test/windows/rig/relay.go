package rig

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
)

// DockerPipe is where Docker listens on Windows.
const DockerPipe = `\\.\pipe\docker_engine`

// Relay makes a named pipe of the prefix lead to a TCP address, as seen from the prefix's network. It is served when Relay returns, until
// stop is called or the prefix ends.
func (p *Prefix) Relay(ctx context.Context, pipe, address string) (stop func(), err error) {
	cmd := p.Command(context.WithoutCancel(ctx), p.guest, "relay", pipe, address)
	if err := started(cmd); err != nil {
		return nil, fmt.Errorf("cannot relay %s: %w", pipe, err)
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}, nil
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
		_ = cmd.Wait()
		return fmt.Errorf("it ended before it was ready: %q", line)
	}
	return nil
}
