package dockertest

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"
)

// Buffer is an output that can be read while it grows.
type Buffer struct {
	mu    sync.Mutex
	data  bytes.Buffer
	grown chan struct{}
}

// NewBuffer returns an empty Buffer.
func NewBuffer() *Buffer { return &Buffer{grown: make(chan struct{}, 1)} }

// Write appends data.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer func() {
		select {
		case b.grown <- struct{}{}:
		default:
		}
	}()
	return b.data.Write(p)
}

// Close does nothing.
func (b *Buffer) Close() error { return nil }

// String returns everything written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.String()
}

// Await blocks until the output contains text. After 20 s the test fails.
func (b *Buffer) Await(t *testing.T, text string) {
	t.Helper()
	deadline := time.After(time.Minute)
	for !strings.Contains(b.String(), text) {
		select {
		case <-b.grown:
		case <-deadline:
			t.Fatalf("output %q: want %q in it", b.String(), text)
		}
	}
}
