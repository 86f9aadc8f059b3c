package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/winkube/winkube/test/lab"
)

// The tests whose names begin with TestHostile play an adversary: a tenant who may create Services and pods, or the
// owner of one node. In each, victims receive requests throughout and must not be affected.

// victims are servers that receive requests in the background until unharmed is called.
type victims struct {
	*space
	ctx   context.Context
	end   context.CancelFunc
	group sync.WaitGroup

	mu    sync.Mutex
	asked map[string]int
	wrong map[string][]string
	more  chan struct{} // closed and replaced after each answer
}

func (s *space) victims() *victims {
	ctx, end := context.WithCancel(context.Background())
	v := &victims{space: s, ctx: ctx, end: end, asked: map[string]int{}, wrong: map[string][]string{}, more: make(chan struct{})}
	s.Cleanup(v.stop)
	return v
}

// ask repeats do in a host's network, on a thread that never leaves it; without a host in the machine's own network.
func (v *victims) ask(name string, from *lab.Host, do func() error) {
	v.mu.Lock()
	v.asked[name] = 0
	v.mu.Unlock()
	v.group.Go(func() {
		if from != nil {
			runtime.LockOSThread()
			network, err := netns.GetFromName(from.Namespace())
			if err == nil {
				defer network.Close()
				err = netns.Set(network)
			}
			if err != nil {
				v.Error(err)
				return
			}
		}
		for v.ctx.Err() == nil {
			begin := time.Now()
			err := do()
			if v.ctx.Err() != nil {
				return
			}
			v.answered(name, begin, err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-v.ctx.Done():
			}
		}
	})
}

func (v *victims) answered(name string, begin time.Time, err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.asked[name]++
	if err != nil {
		v.wrong[name] = append(v.wrong[name], fmt.Sprintf("%s, after %s: %v", begin.Format("15:04:05.000"), time.Since(begin).Round(time.Millisecond), err))
	}
	close(v.more)
	v.more = make(chan struct{})
}

// rounds waits until every victim has answered n more requests.
func (v *victims) rounds(n int) {
	v.Helper()
	late := time.After(5 * time.Minute)
	v.mu.Lock()
	want := map[string]int{}
	for name, asked := range v.asked {
		want[name] = asked + n
	}
	v.mu.Unlock()
	for {
		v.mu.Lock()
		more, done := v.more, true
		for name, asked := range v.asked {
			done = done && asked >= want[name]
		}
		v.mu.Unlock()
		if done {
			return
		}
		select {
		case <-more:
		case <-late:
			v.Fatalf("the victims did not get %d requests within five minutes: %v of %v", n, v.asked, want)
		}
	}
}

func (v *victims) stop() {
	v.end()
	v.group.Wait()
}

// unharmed stops the requests and fails the test for each victim that was affected.
func (v *victims) unharmed() {
	v.Helper()
	v.stop()
	for name, wrong := range v.wrong {
		shown := wrong[:min(3, len(wrong))]
		v.Errorf("%s: %d of %d times wrong, such as\n  %s", name, len(wrong), v.asked[name], strings.Join(shown, "\n  "))
	}
	v.Logf("asked: %v", v.asked)
}

// says sends one request to a web server over a new connection and compares the response.
func says(addr, want string) error {
	got, err := visit(addr)
	if err == nil && got != want {
		err = fmt.Errorf("it says %q, want %q", got, want)
	}
	return err
}

// visit returns a web server's response at /, requested on the caller's own thread.
func visit(addr string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, 20*time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	_, body, found := bytes.Cut(answer, []byte("\r\n\r\n"))
	if !found {
		return "", errors.Join(err, fmt.Errorf("%q is no answer", answer))
	}
	return strings.TrimSpace(string(body)), nil
}

// hello returns the response of the sample's web server in a pod.
func hello(pod string) string { return "hello from " + pod }

// resolves makes a host look up a name at a DNS server.
func (v *victims) resolves(name string, from *lab.Host, server, proto string) {
	v.ask(name, from, func() error {
		out, err := from.Exec(v.ctx, filepath.Join(cluster.Tools, "sample"), "resolve", "kubernetes.default.svc."+lab.DNSDomain, "--server="+server, "--proto="+proto)
		if err == nil && strings.TrimSpace(out) != lab.ServiceIP {
			err = fmt.Errorf("it is told %q, want %s", strings.TrimSpace(out), lab.ServiceIP)
		}
		return err
	})
}

// claim creates a Service that claims what the test wants.
func (s *space) claim(name, app string, ports []v1.ServicePort, more func(*v1.ServiceSpec)) *v1.Service {
	s.Helper()
	service := &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.ServiceSpec{Selector: map[string]string{"app": app}, Ports: ports}}
	if more != nil {
		more(&service.Spec)
	}
	made, err := client.CoreV1().Services(s.name).Create(s.Context(), service, metav1.CreateOptions{})
	s.must(err)
	return made
}

func tcp(port, target int) v1.ServicePort {
	return v1.ServicePort{Name: fmt.Sprintf("tcp-%d", port), Protocol: v1.ProtocolTCP, Port: int32(port), TargetPort: intstr.FromInt(target)}
}

func udp(port, target int) v1.ServicePort {
	return v1.ServicePort{Name: fmt.Sprintf("udp-%d", port), Protocol: v1.ProtocolUDP, Port: int32(port), TargetPort: intstr.FromInt(target)}
}

// warned waits for a Warning event about an object that contains all texts.
func (s *space) warned(namespace, kind, name string, says ...string) {
	s.Helper()
	var last error
	err := wait.PollUntilContextTimeout(s.Context(), 500*time.Millisecond, 2*time.Minute, true, func(context.Context) (bool, error) {
		texts, err := warnings(s.Context(), namespace, kind, name)
		for _, text := range texts {
			if !slices.ContainsFunc(says, func(part string) bool { return !strings.Contains(text, part) }) {
				return true, nil
			}
		}
		last = errors.Join(err, fmt.Errorf("only %q", texts))
		return false, nil
	})
	if err != nil {
		s.Errorf("%s %s has no warning with %q: %v", kind, name, says, last)
	}
}

func warnings(ctx context.Context, namespace, kind, name string) (texts []string, err error) {
	list, err := client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=" + kind + ",involvedObject.name=" + name})
	if err != nil {
		return nil, err
	}
	for _, event := range list.Items {
		if event.Type == v1.EventTypeWarning {
			texts = append(texts, event.Reason+": "+event.Message)
		}
	}
	return texts, nil
}

// outsider is a host on the nodes' link outside the cluster, with web servers on some ports.
type outsider struct {
	*lab.Host
	mac string
}

func (s *space) outsider(addr netip.Addr, ports ...int) *outsider {
	s.Helper()
	o := &outsider{Host: &lab.Host{Name: "outsider", Addr: addr}}
	name, bridge := o.Namespace(), strings.TrimSuffix(o.Namespace(), "outsider")+"switch"
	sh := func(args string) {
		if out, err := cluster.Control.Exec(context.Background(), append([]string{"ip"}, strings.Fields(args)...)...); err != nil {
			s.Fatal(err, out)
		}
	}
	for _, left := range [][]string{{"-n", bridge, "link", "del", "outsider"}, {"netns", "del", name}} { // left by a killed run
		_, _ = cluster.Control.Exec(s.Context(), append([]string{"ip"}, left...)...)
	}
	sh("netns add " + name)
	s.Cleanup(func() {
		sh("-n " + bridge + " link del outsider") // a namespace releases its links only after its deletion
		sh("netns del " + name)
	})
	sh("-n " + bridge + " link add outsider type veth peer name eth0 netns " + name)
	sh("-n " + bridge + " link set outsider master br0 up")
	sh("-n " + name + " addr add " + addr.String() + "/24 dev eth0")
	sh("-n " + name + " link set eth0 up")
	sh("-n " + name + " link set lo up")
	for _, port := range ports {
		listener, err := listenOn(o.Host, net.JoinHostPort(addr.String(), strconv.Itoa(port)))
		s.must(err)
		server := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, hello("outsider")) })}
		go func() { _ = server.Serve(listener) }()
		s.Cleanup(func() { _ = server.Close() })
	}
	o.mac = s.hardware(o.Host)
	for _, host := range cluster.Hosts() { // they may remember an earlier outsider
		_, _ = host.Exec(s.Context(), "ip", "neigh", "flush", "to", addr.String(), "dev", "eth0")
	}
	return o
}

// hardware returns the MAC address of a host's eth0.
func (s *space) hardware(host *lab.Host) (mac string) {
	s.Helper()
	s.must(within(host, func() error {
		link, err := net.InterfaceByName("eth0")
		if err == nil {
			mac = link.HardwareAddr.String()
		}
		return err
	}))
	return mac
}

// neighbour clears a host's neighbour entry for an address, triggers a new lookup, and returns the MAC address that
// answered.
func (s *space) neighbour(host *lab.Host, addr netip.Addr) string {
	s.Helper()
	_, _ = host.Exec(s.Context(), "ip", "neigh", "flush", "to", addr.String(), "dev", "eth0")
	_ = within(host, func() error {
		conn, err := net.DialTimeout("udp", net.JoinHostPort(addr.String(), "9"), time.Second)
		if err == nil {
			_, err = conn.Write([]byte("?"))
			conn.Close()
		}
		return err
	})
	var found string
	s.eventually(time.Minute, "neighbour "+addr.String(), func(ctx context.Context) error {
		out, err := host.Exec(ctx, "ip", "neigh", "show", "to", addr.String(), "dev", "eth0")
		words := strings.Fields(out)
		if i := slices.Index(words, "lladdr"); i >= 0 {
			found = words[i+1]
			return nil
		}
		return fmt.Errorf("%q, %v", out, err)
	})
	return found
}

// memory returns a process's memory usage in bytes.
func (s *space) memory(process *lab.Process) int {
	s.Helper()
	pid, ok := process.PID()
	if !ok {
		s.Fatalf("%s does not run", process.Name)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	s.must(err)
	for line := range strings.Lines(string(status)) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == "VmRSS:" {
			kilobytes, err := strconv.Atoi(words[1])
			s.must(err)
			return kilobytes << 10
		}
	}
	s.Fatalf("no VmRSS in %s", status)
	return 0
}

// thief starts a pod that would answer in place of others.
func (s *space) thief(node *lab.Host) {
	s.Helper()
	s.create(s.pod("thief", node, "serve", "8080"))
	s.ready("thief")
}

// TestHostileOutsider tests the fixture: the outsider itself answers its clients.
func TestHostileOutsider(t *testing.T) {
	s := newSpace(t)
	o := s.outsider(netip.MustParseAddr("172.30.0.99"), 80)
	for _, host := range cluster.Hosts() {
		s.must(within(host, func() error { return says("172.30.0.99:80", hello("outsider")) }))
		if mac := s.neighbour(host, o.Addr); mac != o.mac {
			t.Errorf("%s: %s answers for the outsider, want %s", host.Name, mac, o.mac)
		}
	}
}
