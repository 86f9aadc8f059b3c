package limits

import "github.com/prometheus/client_golang/prometheus"

// causeNames are the metrics' names for the limits of TCP, sessionNames those of UDP.
var (
	causeNames = [causes]string{
		clientLimit: "connections_of_client", pairLimit: "connections_of_client_at_front", earlyLimit: "half_open_of_front", frontLimit: "connections_of_front",
		allLimit: "connections", portsLimit: "source_ports_to_endpoint", portsOfClient: "source_ports_to_endpoint_of_client", filesLimit: "files",
	}
	sessionNames = [causes]string{pairLimit: "sessions_of_client_at_front", frontLimit: "sessions_of_front", allLimit: "sessions"}
)

// limited counts the outcomes of one protocol's limits. Limits without a name do not exist.
type limited struct{ refused, closed [causes]prometheus.Counter }

func newLimited(names [causes]string) (l limited) {
	for c, name := range names {
		l.refused[c], l.closed[c] = Total(name, "refused"), Total(name, "closed")
	}
	return l
}

func (l *limited) named(names [causes]string) (out []prometheus.Counter) {
	for c, name := range names {
		if name != "" {
			out = append(out, l.refused[c], l.closed[c])
		}
	}
	return out
}

// Total returns a new counter of a limit's outcome, which is refused or closed.
func Total(limit, outcome string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: "kubeproxy_relay_limited_total", Help: "Connections and sessions that a limit refused or that were closed to make room.",
		ConstLabels: prometheus.Labels{"limit": limit, "outcome": outcome}})
}
