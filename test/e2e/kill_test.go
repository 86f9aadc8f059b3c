package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/winkube/winkube/test/lab"
)

// traffic runs while the cluster is disturbed: a connection between two pods on two nodes that must never break, and
// continuous requests from hosts to a service.
type traffic struct {
	*space
	url string
}

// startTraffic starts an echo server on the first node, a stream to it on the second, and a web server on each behind a
// service.
func startTraffic(t *testing.T) *traffic {
	s := newSpace(t)
	first, second := cluster.Nodes[0], cluster.Nodes[1]
	s.create(s.pod("echo", first, "echo", "7777"))
	for i, node := range cluster.Nodes {
		web := s.pod(fmt.Sprintf("web-%d", i+1), node, "serve", "8080")
		web.Labels["app"] = "web"
		s.create(web)
	}
	url := "http://" + s.service("web", 8080) + "/"
	stream := s.pod("stream", second, "stream", s.ready("echo").Status.PodIP+":7777")
	stream.Spec.RestartPolicy = "Never" // a broken connection must be visible
	s.create(stream)
	s.ready("stream")
	s.ready("web-1")
	s.ready("web-2")
	for _, node := range cluster.Nodes {
		s.eventually(time.Minute, "service from "+node.Name, func(ctx context.Context) error {
			_, err := ask(ctx, node, url)
			return err
		})
	}
	s.allReady(3 * time.Minute)
	return &traffic{s, url}
}

var outageLine = regexp.MustCompile(`(?m)^outage ([0-9.]+) s`)

// during starts clients of the service on both hosts, runs do two seconds later, and lets the clients continue for
// settle. It returns the longest interval without a response, and the clients' output.
func (tr *traffic) during(settle time.Duration, do func()) (longest time.Duration, seen string) {
	tr.Helper()
	var group sync.WaitGroup
	outputs := make([]string, len(cluster.Nodes))
	for i, node := range cluster.Nodes {
		group.Go(func() {
			out, err := node.Exec(context.Background(), filepath.Join(cluster.Tools, "sample"), "watch", tr.url, (settle + 2*time.Second).String())
			if err != nil {
				tr.Error(err)
			}
			outputs[i] = out
		})
	}
	time.Sleep(2 * time.Second) // the clients run for a fixed time
	do()
	group.Wait()
	for i, out := range outputs {
		seen += cluster.Nodes[i].Name + ": " + strings.TrimSpace(out) + "\n"
		for _, match := range outageLine.FindAllStringSubmatch(out, -1) {
			seconds, _ := strconv.ParseFloat(match[1], 64)
			longest = max(longest, time.Duration(seconds*float64(time.Second)))
		}
	}
	return longest, seen
}

// unbroken ends the test if the connection between the pods broke; it returns the stream's last output.
func (tr *traffic) unbroken() string {
	tr.Helper()
	return tr.unbrokenOf("stream")
}

// unbrokenOf is unbroken for any pod that streams.
func (tr *traffic) unbrokenOf(name string) string {
	tr.Helper()
	pod := tr.get(name)
	lines := strings.Split(strings.TrimSpace(tr.logs(name)), "\n")
	last := lines[len(lines)-1]
	if pod.Status.Phase != "Running" || !strings.HasPrefix(last, "unbroken") {
		tr.Fatalf("the connection between pods broke: pod %s, %s", pod.Status.Phase, last)
	}
	return last
}

// TestKill kills our programs under traffic and restarts them immediately.
func TestKill(t *testing.T) {
	for _, test := range []struct {
		name      string
		processes []string
		outage    time.Duration // longest interval without a response from the service
	}{
		{"kubelet", []string{"kubelet"}, 0},
		{"proxy", []string{"proxy"}, time.Second},
		{"both", []string{"kubelet", "proxy"}, time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			tr := startTraffic(t)
			before := tr.snapshot()
			var without time.Duration
			longest, seen := tr.during(8*time.Second, func() {
				for _, node := range cluster.Nodes { // one after the other: they share the machine's processors, as real nodes do not
					without = max(without, tr.killAll(node, test.processes))
					tr.eventually(10*time.Second, "service from "+node.Name, func(ctx context.Context) error {
						_, err := ask(ctx, node, tr.url)
						return err
					})
				}
			})
			most := test.outage
			if most > 0 {
				most += without // no program can serve before it is started
			}
			if longest > most {
				t.Errorf("the service was silent for %s, want at most %s:\n%s", longest, most, seen)
			}
			if diff := difference(before, tr.snapshot()); diff != "" {
				t.Errorf("containers or restart counts changed:\n%s", diff)
			}
			stream := tr.unbroken()
			begin := time.Now()
			tr.create(tr.pod("after", cluster.Nodes[0], "sleep"))
			tr.ready("after")
			t.Logf("kill -9 of %s: service silent for at most %.3f s; pod-to-pod %s; no container restarted; a new pod Ready after %.1f s",
				test.name, longest.Seconds(), stream, time.Since(begin).Seconds())
		})
	}
}

// killAll kills a node's processes one after the other and restarts each immediately. It returns the longest time without a process.
func (s *space) killAll(host *lab.Host, names []string) (without time.Duration) {
	for _, name := range names {
		killed := time.Now()
		if err := host.Process(name).Kill9(context.Background()); err != nil {
			s.Error(err)
		}
		if err := host.Process(name).Start(context.Background()); err != nil {
			s.Error(err)
		}
		without = max(without, time.Since(killed))
	}
	return without
}
