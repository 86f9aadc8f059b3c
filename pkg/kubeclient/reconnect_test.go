package kubeclient

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"time"
)

type trips func(*http.Request) (*http.Response, error)

func (f trips) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestReconnect(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	reset := &net.OpError{Op: "read", Err: errors.New("connection reset")}
	for _, test := range []struct {
		name, method string
		errs         []error // for the first attempts; later ones succeed
		want         error
		attempts     int
	}{
		{"a read waits for the server", http.MethodGet, []error{refused, refused, refused}, nil, 4},
		{"a write does not", http.MethodPatch, []error{refused}, refused, 1},
		{"a read that reached the server is not repeated", http.MethodGet, []error{refused, reset}, reset, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			attempts := 0
			p := reconnect{after: func(d time.Duration) <-chan time.Time {
				if d < patience.Duration || d > 2*patience.Cap {
					t.Errorf("paused for %s", d)
				}
				now := make(chan time.Time, 1)
				now <- time.Time{}
				return now
			}, next: trips(func(*http.Request) (*http.Response, error) {
				attempts++
				if attempts <= len(test.errs) {
					return nil, test.errs[attempts-1]
				}
				return &http.Response{StatusCode: http.StatusOK}, nil
			})}
			request, err := http.NewRequest(test.method, "http://api/", nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.RoundTrip(request); !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
			if attempts != test.attempts {
				t.Errorf("%d attempts, want %d", attempts, test.attempts)
			}
		})
	}
}

func TestReconnectEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	p := reconnect{after: func(time.Duration) <-chan time.Time { cancel(); return nil }, next: trips(func(*http.Request) (*http.Response, error) {
		return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	})}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://api/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.RoundTrip(request); err == nil {
		t.Error("no error after the context ended")
	}
}
