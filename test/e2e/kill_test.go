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

// traffic is what goes on while something is done to the cluster: a connection between two pods on two nodes that must never break,
// and a service that hosts ask all the time.
type traffic struct {
	*space
	url string
}

// startTraffic runs an echo on the first node, one stream to it on the second, and a web server on each behind a service.
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
	stream.Spec.RestartPolicy = "Never" // a connection that broke must be seen
	s.create(stream)
	s.ready("stream")
	s.ready("web-1")
	s.ready("web-2")
	for _, node := range cluster.Nodes {
		s.eventually(20*time.Second, "service from "+node.Name, func(ctx context.Context) error {
			_, err := ask(ctx, node, url)
			return err
		})
	}
	s.allReady(90 * time.Second)
	return &traffic{s, url}
}

var outageLine = regexp.MustCompile(`(?m)^outage ([0-9.]+) s`)

// during runs do two seconds after clients on both hosts began to ask the service, lets them go on for settle, and returns the longest
// interval without an answer, with what the clients printed.
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
	time.Sleep(2 * time.Second) // the clients' own clock: they ask for a fixed time
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

// unbroken ends the test when the connection between the pods broke; it returns the stream's own last words.
func (tr *traffic) unbroken() string {
	tr.Helper()
	pod := tr.get("stream")
	lines := strings.Split(strings.TrimSpace(tr.logs("stream")), "\n")
	last := lines[len(lines)-1]
	if pod.Status.Phase != "Running" || !strings.HasPrefix(last, "unbroken") {
		tr.Fatalf("the connection between pods broke: pod %s, %s", pod.Status.Phase, last)
	}
	return last
}

// TestKill kills our programs during traffic and restarts them immediately.
func TestKill(t *testing.T) {
	for _, test := range []struct {
		name      string
		processes []string
		outage    time.Duration // longest that the service may be silent
	}{
		{"kubelet", []string{"kubelet"}, 0},
		{"proxy", []string{"proxy"}, time.Second},
		{"both", []string{"kubelet", "proxy"}, time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			tr := startTraffic(t)
			before := tr.snapshot()
			longest, seen := tr.during(8*time.Second, func() { tr.killAll(cluster.Nodes, test.processes) })
			if longest > test.outage {
				t.Errorf("the service was silent for %s, want at most %s:\n%s", longest, test.outage, seen)
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

// killAll kills one process after the other, each started again right after its death.
func (s *space) killAll(hosts []*lab.Host, names []string) {
	for _, host := range hosts {
		for _, name := range names {
			if err := host.Process(name).Kill9(context.Background()); err != nil {
				s.Error(err)
			}
			if err := host.Process(name).Start(context.Background()); err != nil {
				s.Error(err)
			}
		}
	}
}
