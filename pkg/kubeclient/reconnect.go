package kubeclient

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"time"
)

// How long a read waits between two attempts to reach an API server that is away. client-go's own watches would wait up to a minute
// after an outage of some minutes, and pods that were bound meanwhile with them.
const (
	firstPatience   = 250 * time.Millisecond
	longestPatience = 5 * time.Second
)

// reconnect repeats reads for which no connection came about, as long as their context lives. Everything else passes unchanged: a
// request that may have reached the server is the caller's to repeat.
type reconnect struct {
	next http.RoundTripper
	// after is time.After, except in tests.
	after func(time.Duration) <-chan time.Time
}

func (p reconnect) RoundTrip(request *http.Request) (*http.Response, error) {
	for pause := firstPatience; ; pause = min(2*pause, longestPatience) {
		response, err := p.next.RoundTrip(request)
		var connecting *net.OpError
		if err == nil || request.Method != http.MethodGet || !errors.As(err, &connecting) || connecting.Op != "dial" {
			return response, err
		}
		select {
		case <-request.Context().Done():
			return response, err
		case <-p.after(pause/2 + rand.N(pause/2)): // so that nodes do not all come back at the same moment
		}
	}
}
