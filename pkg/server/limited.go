package server

import (
	"errors"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
)

// Limited counts requests that a limit of this package refused with 429, and connections that one closed. It is a prometheus.Collector.
type Limited struct{ *prometheus.CounterVec }

// The limits that Limited counts. The last two close connections, the others refuse requests.
const (
	limitRequests          = "requests"
	limitStreams           = "streams"
	limitRuns              = "runs"
	limitNewTokens         = "new_tokens"
	limitKnownTokens       = "known_tokens"
	limitAccessReviews     = "access_reviews"
	limitStrangers         = "strangers"
	limitStrangersOfSource = "strangers_of_address"
)

// NewLimited returns counters that begin at zero.
func NewLimited() *Limited {
	l := &Limited{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "winkube_server_limited_total", Help: "Requests to the kubelet's port that a limit refused with status 429, and connections without an authenticated request that one closed.",
	}, []string{"limit"})}
	for _, limit := range []string{limitRequests, limitStreams, limitRuns, limitNewTokens, limitKnownTokens, limitAccessReviews, limitStrangers, limitStrangersOfSource} {
		l.WithLabelValues(limit)
	}
	return l
}

func (l *Limited) count(limit string) { l.WithLabelValues(limit).Inc() }

// errBusy says that a limit was exceeded.
var errBusy = errors.New("too many requests are in progress")

// fullError is errBusy for one limit.
type fullError struct{ limit string }

func (*fullError) Error() string { return errBusy.Error() }

// Is implements errors.Is.
func (*fullError) Is(target error) bool { return target == errBusy }

// refuse answers 429 if err says that a limit was exceeded.
func (s *Server) refuse(w http.ResponseWriter, err error) bool {
	if !errors.Is(err, errBusy) {
		return false
	}
	if full := (*fullError)(nil); errors.As(err, &full) {
		s.parts.Limited.count(full.limit)
	}
	w.Header().Set("Retry-After", "1")
	plain(w, http.StatusTooManyRequests, "Too many requests are under way, try again later\n")
	return true
}
