package kubeclient

import (
	"errors"
	"math"
	"net"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// patience is how long a read waits between two attempts to reach an API server that is away. client-go's own watches would wait up to a minute
// after an outage of some minutes, and pods that were bound meanwhile with them. The jitter keeps nodes from coming back at the same moment.
var patience = wait.Backoff{Duration: 125 * time.Millisecond, Factor: 2, Steps: math.MaxInt, Cap: 2500 * time.Millisecond, Jitter: 1}

// reconnect repeats reads for which no connection came about, as long as their context lives. Everything else passes unchanged: a
// request that may have reached the server is the caller's to repeat.
type reconnect struct {
	next http.RoundTripper
	// after is time.After, except in tests.
	after func(time.Duration) <-chan time.Time
}

func (p reconnect) RoundTrip(request *http.Request) (*http.Response, error) {
	for pause := patience; ; {
		response, err := p.next.RoundTrip(request)
		var connecting *net.OpError
		if err == nil || request.Method != http.MethodGet || !errors.As(err, &connecting) || connecting.Op != "dial" {
			return response, err
		}
		select {
		case <-request.Context().Done():
			return response, err
		case <-p.after(pause.Step()):
		}
	}
}
