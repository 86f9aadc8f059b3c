package kubeclient

import (
	"errors"
	"math"
	"net"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// patience is the pause between attempts of a read to reach an unavailable API server. After an outage of some minutes, client-go's own
// watches would wait up to a minute, which would delay newly bound pods. The jitter keeps nodes from reconnecting at the same moment.
var patience = wait.Backoff{Duration: 125 * time.Millisecond, Factor: 2, Steps: math.MaxInt, Cap: 2500 * time.Millisecond, Jitter: 1}

// reconnect repeats reads that could not connect, until their context ends. Other requests pass unchanged: if a request may have reached
// the server, only its caller can decide to repeat it.
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
