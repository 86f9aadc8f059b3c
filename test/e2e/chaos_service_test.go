package e2e

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/vishvananda/netns"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
)

// TestServicesHeal removes from a node, under traffic, what its proxy created: routes, rules, addresses, their
// interface and, by killing the proxy, every listener. It prints how long each was missing and how many requests failed
// (WINKUBE_CHAOS: duration, 20s; WINKUBE_SEED).
func TestServicesHeal(t *testing.T) {
	duration, seed := 20*time.Second, uint64(number(t, "WINKUBE_SEED", int(time.Now().Unix()%100000)))
	if text := os.Getenv("WINKUBE_CHAOS"); text != "" {
		var err error
		if duration, err = time.ParseDuration(text); err != nil {
			t.Fatalf("WINKUBE_CHAOS=%s: want a duration such as 5m", text)
		}
	}
	t.Logf("%s of it, WINKUBE_SEED=%d", duration, seed)
	s := newSpace(t)
	c := newServiceChaos(s, cluster.Nodes[0], cluster.Nodes[1])
	random := rand.New(rand.NewPCG(seed, 1))
	for end := time.Now().Add(duration); time.Now().Before(end) && !t.Failed(); {
		c.strike(strikes[random.IntN(len(strikes))], random)
	}
	c.stop()
	c.print()
}

// externalIP is an address outside the service range, so a rule reserves its port.
const externalIP = "198.51.100.77"

// strike is one way to remove something.
type strike struct {
	name     string
	do       func(c *serviceChaos, random *rand.Rand) error
	patience time.Duration // until everything is served again
}

var strikes = []strike{
	{"services' route", func(c *serviceChaos, _ *rand.Rand) error {
		return c.ip("route", "flush", "table", "local", "proto", "119")
	}, 30 * time.Second},
	{"all rules", func(c *serviceChaos, _ *rand.Rand) error {
		_, err := c.host.Exec(c.Context(), "nft", "add table inet winkube-proxy; delete table inet winkube-proxy") // it may be gone since the last time
		return err
	}, 30 * time.Second},
	{"external port's rule", func(c *serviceChaos, _ *rand.Rand) error { return c.ip("rule", "del", "priority", "122") }, 30 * time.Second},
	{"external port's route", func(c *serviceChaos, _ *rand.Rand) error { return c.ip("route", "flush", "table", "1190600080") }, 30 * time.Second},
	{"route", func(c *serviceChaos, _ *rand.Rand) error { return c.ip("route", "del", c.route) }, 30 * time.Second},
	{"listeners", func(c *serviceChaos, _ *rand.Rand) error {
		if err := c.host.Process("proxy").Kill9(c.Context()); err != nil {
			return err
		}
		return c.host.Process("proxy").Start(c.Context())
	}, time.Minute},
}

// serviceChaos is the state of one run.
type serviceChaos struct {
	*space
	host      *lab.Host
	addresses []string // cluster IPs of this test's services
	route     string   // to the other node's pods
	fronts    []*asked
	end       context.CancelFunc
	group     sync.WaitGroup

	away map[string][]time.Duration // by strike
	lost map[string]int
}

// asked is a front and a client that sends requests without pause.
type asked struct {
	addr string

	mu     sync.Mutex
	good   int
	failed int
	last   time.Time // when the last answered request began
}

func newServiceChaos(s *space, near, far *lab.Host) *serviceChaos {
	c := &serviceChaos{space: s, host: near, away: map[string][]time.Duration{}, lost: map[string]int{}}
	for name, node := range map[string]*lab.Host{"near": near, "far": far} {
		s.create(s.pod(name, node, "serve", "8080"))
		c.addresses = append(c.addresses, s.service(name, 8080))
	}
	node, err := client.CoreV1().Nodes().Get(s.Context(), far.Name, metav1.GetOptions{})
	s.must(err)
	c.route = node.Spec.PodCIDR
	s.ready("near")
	s.ready("far")
	web, err := client.CoreV1().Services(s.name).Get(s.Context(), "far", metav1.GetOptions{})
	s.must(err)
	web.Spec.Type, web.Spec.ExternalIPs = v1.ServiceTypeNodePort, []string{externalIP}
	web, err = client.CoreV1().Services(s.name).Update(s.Context(), web, metav1.UpdateOptions{})
	s.must(err)
	ctx, end := context.WithCancel(context.Background())
	c.end = end
	nodePort := net.JoinHostPort(near.Addr.String(), fmt.Sprint(web.Spec.Ports[0].NodePort))
	for _, addr := range []string{net.JoinHostPort(c.addresses[0], "80"), net.JoinHostPort(c.addresses[1], "80"), net.JoinHostPort(externalIP, "80"), nodePort} {
		a := &asked{addr: addr}
		c.fronts = append(c.fronts, a)
		c.group.Go(func() {
			if err := a.run(ctx, near.Namespace()); err != nil {
				c.Error(err)
			}
		})
	}
	c.served(time.Now(), time.Minute)
	for _, a := range c.fronts {
		a.mu.Lock()
		a.failed = 0 // failures before it was first served
		a.mu.Unlock()
	}
	return c
}

func (c *serviceChaos) ip(args ...string) error {
	_, err := c.host.Exec(c.Context(), append([]string{"ip"}, args...)...)
	return err
}

// strike removes something, waits until everything is served again, and then pauses for a moment.
func (c *serviceChaos) strike(s strike, random *rand.Rand) {
	before := c.failures()
	at := time.Now()
	if err := s.do(c, random); err != nil {
		c.Errorf("%s: %v", s.name, err)
		return
	}
	c.served(time.Now(), s.patience)
	c.away[s.name] = append(c.away[s.name], time.Since(at))
	time.Sleep(300 * time.Millisecond)
	c.lost[s.name] += c.failures() - before
}

// served waits until each front has answered a request sent after since.
func (c *serviceChaos) served(since time.Time, patience time.Duration) {
	c.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		missing := slices.IndexFunc(c.fronts, func(a *asked) bool {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.last.Before(since)
		})
		if missing < 0 {
			return
		}
		if time.Now().After(end) {
			c.Errorf("%s is not served %s after the damage", c.fronts[missing].addr, patience)
			return
		}
	}
}

func (c *serviceChaos) failures() (n int) {
	for _, a := range c.fronts {
		a.mu.Lock()
		n += a.failed
		a.mu.Unlock()
	}
	return n
}

func (c *serviceChaos) stop() {
	c.end()
	c.group.Wait()
}

// run sends requests to the front from a network namespace until ctx ends. Its thread never leaves that namespace, and
// ends with it.
func (a *asked) run(ctx context.Context, namespace string) error {
	runtime.LockOSThread()
	ns, err := netns.GetFromName(namespace)
	if err != nil {
		return fmt.Errorf("cannot find namespace %s: %w", namespace, err)
	}
	defer ns.Close()
	if err := netns.Set(ns); err != nil {
		return fmt.Errorf("cannot enter namespace %s: %w", namespace, err)
	}
	for ctx.Err() == nil {
		began := time.Now()
		err := get(a.addr)
		a.mu.Lock()
		if err == nil {
			a.good++
			a.last = began
		} else {
			a.failed++
		}
		a.mu.Unlock()
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// get sends one request over a new connection, with a timeout of a second: it does not fail the test, but is counted and sent again.
func get(addr string) error {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return err
	}
	answer := make([]byte, 64)
	n, err := conn.Read(answer)
	if !bytes.HasPrefix(answer[:n], []byte("HTTP/")) {
		return fmt.Errorf("%q, %v is no answer", answer[:n], err)
	}
	return nil
}

func (c *serviceChaos) print() {
	var out strings.Builder
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "TAKEN AWAY\tTIMES\tSERVED AGAIN, MEDIAN\tAT MOST\tREQUESTS LOST")
	for _, s := range strikes {
		if took := slices.Sorted(slices.Values(c.away[s.name])); len(took) > 0 {
			fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%d\n", s.name, len(took), took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond), c.lost[s.name])
		}
	}
	good := 0
	for _, a := range c.fronts {
		good += a.good
	}
	table.Flush()
	c.Logf("services heal: %d requests answered, %d lost\n%s", good, c.failures(), out.String())
}
