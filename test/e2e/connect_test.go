package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/test/lab"
)

// TestServicesWithoutProxy: if the kernel selects endpoints when clients connect, pods' connections to ClusterIPs do
// not depend on the proxy, its rules and its routes: none ends and none is refused while these are removed
// (WINKUBE_CHAOS: duration, 20s; WINKUBE_SEED).
func TestServicesWithoutProxy(t *testing.T) {
	if mode := os.Getenv("PROXY_MODE"); mode != "connect" && mode != "auto" {
		t.Skip("needs a cluster with PROXY_MODE=connect or auto")
	}
	duration, err := time.ParseDuration("0" + os.Getenv("WINKUBE_CHAOS"))
	if err != nil {
		t.Fatalf("WINKUBE_CHAOS=%s: want a duration such as 5m", os.Getenv("WINKUBE_CHAOS"))
	}
	if duration == 0 {
		duration = 20 * time.Second
	}
	seed := uint64(number(t, "WINKUBE_SEED", int(time.Now().Unix()%100000)))
	t.Logf("%s of it, WINKUBE_SEED=%d", duration, seed)
	s := newSpace(t)
	echo, web := s.service("echo", 7777), s.service("web", 8080)
	s.create(s.pod("echo", cluster.Nodes[1], "echo", "7777"))
	for i, node := range cluster.Nodes {
		server := s.pod(fmt.Sprintf("web-%d", i+1), node, "serve", "8080")
		server.Labels["app"] = "web"
		s.create(server)
		s.ready(server.Name)
	}
	s.ready("echo")
	before := make([]int, len(cluster.Nodes))
	for i, node := range cluster.Nodes {
		s.eventually(time.Minute, "services at "+node.Name, func(ctx context.Context) error {
			n, err := decidedTCP(ctx, node)
			before[i] = n
			if err != nil {
				return err
			}
			_, err = ask(ctx, node, "http://"+web+"/")
			return err
		})
		for name, args := range map[string][]string{"stream": {"stream", echo + ":80"}, "watch": {"watch", "http://" + web + "/", (duration + 10*time.Second).String()}} {
			client := s.pod(name+"-"+node.Name, node, args...)
			client.Spec.RestartPolicy = v1.RestartPolicyNever
			s.create(client)
		}
	}
	for _, node := range cluster.Nodes {
		s.ready("stream-" + node.Name)
		s.ready("watch-" + node.Name)
	}
	random, counts := rand.New(rand.NewPCG(seed, 1)), map[string]int{}
	for end := time.Now().Add(duration); time.Now().Before(end) && !t.Failed(); {
		node := cluster.Nodes[random.IntN(len(cluster.Nodes))]
		counts[s.takeFromProxy(node, random.IntN(3))]++
		time.Sleep(300 * time.Millisecond) // the proxy repairs, clients continue
	}
	for i, node := range cluster.Nodes {
		s.ended("watch-"+node.Name, v1.PodSucceeded, duration+2*time.Minute)
		said := strings.TrimSpace(s.logs("watch-" + node.Name))
		requests := regexp.MustCompile(`^(\d+) requests, 0 lost$`).FindStringSubmatch(said)
		if requests == nil {
			t.Errorf("%s: the client's requests, each by a new connection:\n%s", node.Name, said)
			continue
		}
		stream := (&traffic{space: s}).unbrokenOf("stream-" + node.Name)
		after, err := decidedTCP(s.Context(), node)
		s.must(err)
		made, _ := strconv.Atoi(requests[1])
		if after-before[i] < made {
			t.Errorf("%s: the kernel decided %d of %d new connections", node.Name, after-before[i], made)
		}
		t.Logf("%s: %s; %d connections decided by the kernel; the one to the echo: %s", node.Name, said, after-before[i], stream)
	}
	t.Logf("taken away: %v", counts)
}

// takeFromProxy removes something that only the relay needs.
func (s *space) takeFromProxy(node *lab.Host, what int) string {
	s.Helper()
	ctx := s.Context()
	switch what {
	case 0:
		_, err := node.Exec(ctx, "ip", "route", "flush", "table", "local", "proto", "119")
		s.must(err)
		return "services' route"
	case 1:
		_, err := node.Exec(ctx, "nft", "add table inet winkube-proxy; delete table inet winkube-proxy")
		s.must(err)
		return "all rules"
	}
	s.must(node.Process("proxy").Kill9(ctx))
	time.Sleep(time.Second) // how long there is no proxy
	s.must(node.Process("proxy").Start(ctx))
	return "proxy for a second"
}

// decidedTCP returns for how many TCP connections of a node's clients the kernel selected the endpoint.
func decidedTCP(ctx context.Context, node *lab.Host) (int, error) {
	page, err := ask(ctx, node, "http://127.0.0.1:10249/metrics")
	if err != nil {
		return 0, err
	}
	count := regexp.MustCompile(`(?m)^kubeproxy_connect_decisions_total\{result="tcp"\} (\S+)$`).FindStringSubmatch(page)
	if count == nil {
		return 0, fmt.Errorf("the proxy of %s does not decide at connect", node.Name)
	}
	n, err := strconv.ParseFloat(count[1], 64)
	return int(n), err
}
