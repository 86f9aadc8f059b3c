package command

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrHung says that a program exceeded its time limit, or is not run because it recently did.
var ErrHung = errors.New("it did not end in time")

// patient is a Runner with a time limit for each program.
type patient struct {
	run             Runner
	patience, pause time.Duration

	mu   sync.Mutex
	hung map[string]*hung // by program
}

// hung is a program that exceeded its time limit.
type hung struct {
	ended bool      // it has exited: a program blocked in the kernel may survive being killed
	until time.Time // it is not run again before
}

// Patient returns a Runner whose calls take no longer than patience. It kills a program that exceeds that, and abandons it if it does not exit. Such
// a program is not run again before it has exited and pause has passed; until then every call fails immediately. These errors wrap ErrHung.
func Patient(run Runner, patience, pause time.Duration) Runner {
	return &patient{run: run, patience: patience, pause: pause, hung: map[string]*hung{}}
}

// Run implements Runner.
func (p *patient) Run(ctx context.Context, stdin []byte, name string, args ...string) ([]byte, error) {
	if err := p.refuse(name); err != nil {
		return nil, failed(name, args, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.patience, fmt.Errorf("%w of %s", ErrHung, p.patience))
	type result struct {
		stdout []byte
		err    error
	}
	done, left := make(chan result, 1), &hung{}
	go func() { // a program that the kernel cannot kill outlives the caller
		defer cancel()
		stdout, err := p.run.Run(ctx, stdin, name, args...)
		done <- result{stdout, err}
		p.mu.Lock()
		defer p.mu.Unlock()
		left.ended = true
	}()
	select {
	case r := <-done:
		if !errors.Is(r.err, ErrHung) {
			return r.stdout, r.err
		}
		return r.stdout, p.blame(name, left, r.err)
	case <-ctx.Done():
	}
	// It has a moment to report its exit.
	timer := time.NewTimer(waitDelay)
	defer timer.Stop()
	err := failed(name, args, context.Cause(ctx))
	select {
	case r := <-done:
		if r.err == nil {
			return r.stdout, nil
		}
		err = r.err
	case <-timer.C:
	}
	if errors.Is(context.Cause(ctx), ErrHung) {
		return nil, p.blame(name, left, err)
	}
	return nil, err
}

func (p *patient) blame(name string, left *hung, err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	left.until = time.Now().Add(p.pause)
	p.hung[name] = left
	return err
}

// refuse says why a program must not run now; nil: it may.
func (p *patient) refuse(name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hung[name]
	if h == nil {
		return nil
	}
	if wait := time.Until(h.until); wait > 0 {
		return fmt.Errorf("%w before; retrying in %s", ErrHung, wait.Round(time.Second))
	}
	if !h.ended {
		return fmt.Errorf("%w before and has not ended yet", ErrHung)
	}
	delete(p.hung, name)
	return nil
}
