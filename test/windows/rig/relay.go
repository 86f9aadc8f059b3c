package rig

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os/exec"
)

// DockerPipe is the named pipe on which Docker listens on Windows.
const DockerPipe = `\\.\pipe\docker_engine`

// Relay relays a named pipe of the prefix to a TCP address in the prefix's network. When Relay returns, the pipe accepts clients, until
// stop is called or the prefix is closed.
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

// TakeFirst makes a go-winio pipe of a program in the prefix usable: Wine connects the first client to an instance that neither go-winio nor
// Windows serves. Call it after each start of that program and before its first client. The pipe need not exist yet.
func (p *Prefix) TakeFirst(ctx context.Context, pipe string) error {
	if _, _, err := p.stay(ctx, "take", pipe); err != nil {
		return fmt.Errorf("cannot take the first instance of %s: %w", pipe, err)
	}
	return nil
}

// Ask sends an HTTP GET request to a pipe of the prefix, like any client there, and returns the status and the body.
func (p *Prefix) Ask(ctx context.Context, pipe, path string) (string, error) {
	return p.ask(ctx, "get", pipe, path)
}

// stay starts the rig's own program in the background and returns it and its input once it is ready. If the program ends earlier, Wine lost it
// before it ran, as in ask, and stay starts it again.
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

// started starts a program and waits for its first line, which means that it is ready.
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
