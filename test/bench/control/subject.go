//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/winkube/winkube/test/apiserver"
)

// backs maps the servers' letters to their addresses.
var backs = map[byte]string{'a': "10.77.0.1", 'b': "10.77.0.2"}

func front(i int) string { return fmt.Sprintf("10.%d.%d.%d", 96+i/62500, i/250%250, 1+i%250) }

// slice returns the EndpointSlice of a service, with perService endpoints. Those of service 0 are all on one server, so
// that a client can identify it.
func slice(i int, letter byte) *discovery.EndpointSlice {
	s := &discovery.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: fmt.Sprintf("service-%d-x7k2p", i), UID: "u",
		Labels: map[string]string{discovery.LabelServiceName: fmt.Sprintf("service-%d", i), discovery.LabelManagedBy: "endpointslice-controller.k8s.io"}},
		AddressType: discovery.AddressTypeIPv4,
		Ports:       []discovery.EndpointPort{{Name: ptr.To("http"), Protocol: ptr.To(v1.ProtocolTCP), Port: ptr.To[int32](backPort)}}}
	for n := range perService {
		e := discovery.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 200+n, i/250, 1+i%250)}, NodeName: ptr.To(fmt.Sprintf("node-%d", i%100)), Zone: ptr.To("z1"),
			Conditions: discovery.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
			TargetRef:  &v1.ObjectReference{Kind: "Pod", Namespace: "bench", Name: fmt.Sprintf("service-%d-6b9c8f-%d", i, n), UID: "0a1b2c3d-0000-0000-0000-000000000000"}}
		s.Endpoints = append(s.Endpoints, e)
	}
	if i == 0 {
		s.Endpoints = s.Endpoints[:1]
		s.Endpoints[0].Addresses = []string{backs[letter]}
	}
	return s
}

func fill(server *apiserver.Server, services int) error {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}, Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: backs['a']}}}}
	cidr := &networking.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networking.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12"}}}
	if err := server.Set(node, cidr); err != nil {
		return err
	}
	for i := range services {
		service := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "bench", Name: fmt.Sprintf("service-%d", i), UID: "u",
			Labels: map[string]string{"app": fmt.Sprintf("service-%d", i)}},
			Spec: v1.ServiceSpec{Type: v1.ServiceTypeClusterIP, ClusterIP: front(i), ClusterIPs: []string{front(i)}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
				SessionAffinity: v1.ServiceAffinityNone, Selector: map[string]string{"app": fmt.Sprintf("service-%d", i)},
				Ports: []v1.ServicePort{{Name: "http", Protocol: v1.ProtocolTCP, Port: 80}}}}
		if err := server.Set(service, slice(i, 'a')); err != nil {
			return err
		}
	}
	return nil
}

// subject is a proxy under test.
type subject struct {
	name string
	api  *apiserver.Server
	log  string
	cmd  *exec.Cmd
}

func (p *subject) measure(ctx context.Context, path, mode string, services int) (err error) {
	defer func() {
		if err != nil {
			data, _ := os.ReadFile(p.log)
			err = fmt.Errorf("%w\n%s", err, data[max(0, len(data)-2000):])
		}
	}()
	began := time.Now()
	if err := p.start(ctx, path, mode); err != nil {
		return err
	}
	defer func() { _ = p.cmd.Process.Kill(); _ = p.cmd.Wait() }()
	if err := p.programmed(ctx); err != nil {
		return err
	}
	if err := p.becomes(ctx, 'a'); err != nil { // upstream counts a sync as successful before the first one
		return err
	}
	cold := time.Since(began)
	coldCPU, err := p.cpu() // other load on the machine hardly affects it
	if err != nil {
		return err
	}
	var took []time.Duration
	for i := range changes {
		letter := "ba"[i%2]
		time.Sleep(20 * time.Millisecond) // let a proxy that batches changes start a new batch each time
		at := time.Now()
		if err := p.api.Set(slice(0, letter)); err != nil {
			return err
		}
		if err := p.becomes(ctx, letter); err != nil {
			return err
		}
		took = append(took, time.Since(at))
	}
	cpu, err := p.cpuOfChange(ctx)
	if err != nil {
		return err
	}
	rss, peak, err := p.memory()
	if err != nil {
		return err
	}
	slices.Sort(took)
	fmt.Printf("%-34s %10.2f s %10.2f s %9.1f ms %11.1f ms %11.2f ms %10.0f MiB %8.0f MiB\n", fmt.Sprintf("%s, %d services", p.name, services), cold.Seconds(), coldCPU.Seconds(),
		inMS(took[len(took)/2]), inMS(took[len(took)*99/100]), inMS(cpu), rss, peak)
	return nil
}

func inMS(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (p *subject) start(ctx context.Context, path, mode string) error {
	log, err := os.Create(p.log)
	if err != nil {
		return err
	}
	defer log.Close()
	args := []string{"--master=http://" + apiAddr, "--hostname-override=" + nodeName, "--proxy-mode=" + mode, "--metrics-bind-address=" + metricsAddr,
		"--cluster-cidr=10.200.0.0/13", "--kube-api-qps=100", "--kube-api-burst=200"}
	if mode == "nftables" {
		args = append(args, "--conntrack-max-per-core=0", "--conntrack-min=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0")
	} else {
		args = append(args, "--network-mode=upstream")
	}
	if mode == connectMode {
		args = append(args, "--connect-cgroup="+os.Getenv(cgroupEnv))
	}
	p.cmd = exec.CommandContext(ctx, "setpriv", append([]string{"--pdeathsig", "KILL", path}, args...)...) // dies with this program, even if that is killed
	p.cmd.Stdout, p.cmd.Stderr = log, log
	return p.cmd.Start()
}

// programmed waits for the first successful sync.
func (p *subject) programmed(ctx context.Context) error {
	return p.until(ctx, 5*time.Minute, 20*time.Millisecond, "the first sync", func() bool {
		response, err := http.Get("http://" + metricsAddr + "/metrics")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		data, err := io.ReadAll(response.Body)
		at := bytes.Index(data, []byte("\nkubeproxy_sync_proxy_rules_last_timestamp_seconds"))
		if err != nil || at < 0 {
			return false
		}
		line, _, _ := strings.Cut(string(data[at+1:]), "\n")
		value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		return err == nil && value > 0
	})
}

// becomes sends requests to service 0 until that letter's server answers.
func (p *subject) becomes(ctx context.Context, letter byte) error {
	return p.until(ctx, time.Minute, 0, "service 0 at server "+string(letter), func() bool {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(front(0), "80"), 200*time.Millisecond)
		if err != nil {
			return false
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(200 * time.Millisecond))
		var got [1]byte
		_, err = io.ReadFull(conn, got[:])
		return err == nil && got[0] == letter
	})
}

func (p *subject) until(ctx context.Context, patience, pause time.Duration, what string, ok func() bool) error {
	for end := time.Now().Add(patience); !ok(); time.Sleep(pause) {
		if ctx.Err() != nil || time.Now().After(end) {
			return fmt.Errorf("%s: not done within %s", what, patience)
		}
	}
	return nil
}

// cpuOfChange returns the processor time for one change, without clients.
func (p *subject) cpuOfChange(ctx context.Context) (time.Duration, error) {
	before, err := p.cpu()
	if err != nil {
		return 0, err
	}
	for i := range changes {
		if err := p.api.Set(slice(0, "ba"[i%2])); err != nil {
			return 0, err
		}
		time.Sleep(30 * time.Millisecond)
	}
	if err := p.becomes(ctx, "ba"[(changes-1)%2]); err != nil {
		return 0, err
	}
	after, err := p.cpu()
	return (after - before) / changes, err
}

// cpu returns the processor time of the proxy and its child processes so far.
func (p *subject) cpu() (time.Duration, error) {
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every architecture
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	var sum time.Duration
	for _, field := range fields[11:15] { // own and children's, user and system time
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(n) * tick
	}
	return sum, nil
}

// memory returns the current and the peak resident memory in MiB.
func (p *subject) memory() (now, most float64, err error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		kib, _ := strconv.ParseFloat(fields[1], 64)
		switch fields[0] {
		case "VmRSS:":
			now = kib / 1024
		case "VmHWM:":
			most = kib / 1024
		}
	}
	return now, most, nil
}
