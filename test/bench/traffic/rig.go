//go:build linux

package traffic

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/winkube/winkube/test/output"
)

const (
	plain      = "wk-bench"     // namespace of the sides that need no packet rules
	ruled      = "wk-bench-nft" // namespace of upstream's kube-proxy
	chosen     = "wk-bench-c"   // namespace of our proxy in mode connect
	beside     = "wk-bench-b"   // prefix for other builds of our proxy, which would remove each other's addresses
	nodeName   = "bench"
	serverAddr = "10.77.0.1"
	naiveAddr  = "10.77.0.2"
	naiveName  = "naive copy"
	haproxyAt  = "10.77.0.3"
	serviceIP  = "10.96.0.10"
	apiPort    = "6080"
	// far is the suffix of a namespace that acts as another host, at the other end of a link.
	far      = "-far"
	farAddr  = "10.78.0.2"
	nearAddr = "10.78.0.1"
	linkRate = "1gbit"
)

// rig holds everything that a run has started.
type rig struct {
	root, dir string
	self      string
	sides     []side
	spaces    []string
	processes []*exec.Cmd
	inside    map[string][]int // process IDs by namespace
	servers   []*http.Server
}

func newRig(ctx context.Context, root string, others []string) (r *rig, err error) {
	r = &rig{root: root, inside: map[string][]int{}}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if r.self, err = os.Executable(); err != nil {
		return r, err
	}
	if r.dir, err = os.MkdirTemp("", "winkube-bench-"); err != nil {
		return r, err
	}
	r.spaces = []string{plain, ruled, chosen}
	for i := range others {
		r.spaces = append(r.spaces, fmt.Sprint(beside, i))
	}
	for _, namespace := range r.spaces {
		if err := upNamespace(ctx, namespace); err != nil {
			return r, err
		}
		if _, err := r.start(ctx, namespace, "server", r.self, "traffic-server", serverAddr); err != nil {
			return r, err
		}
	}
	r.sides = []side{
		{name: "direct", namespace: plain, addr: serverAddr, udp: true},
		r.haproxy(ctx),
		r.naive(ctx),
		r.upstream(ctx),
	}
	for i, program := range others {
		r.sides = append(r.sides, r.relay(ctx, filepath.Base(program), fmt.Sprint(beside, i), program))
	}
	ours := r.ours(ctx)
	r.sides = append(r.sides, r.connect(ctx), ours) // connect builds the program of ours
	if ours.missing != "" {
		return r, errors.New(ours.missing)
	}
	return r, nil
}

// upNamespace creates a separate host in which 10.77.0.0/16 is local and everything else is routed to loopback.
func upNamespace(ctx context.Context, name string) error {
	_ = exec.CommandContext(ctx, "ip", "netns", "del", name).Run() // left by a killed run
	for _, args := range []string{
		"netns add " + name, "-n " + name + " link set lo up", "-n " + name + " addr add " + serverAddr + "/32 dev lo",
		"-n " + name + " route add local 10.77.0.0/16 dev lo", "-n " + name + " route add default dev lo src " + serverAddr,
	} {
		if said, err := output.Of(exec.CommandContext(ctx, "ip", strings.Fields(args)...)); err != nil {
			return fmt.Errorf("ip %s: %w: %s", args, err, said)
		}
	}
	// The client closes its connections first, tens of thousands per second.
	script := "echo 1024 65000 > /proc/sys/net/ipv4/ip_local_port_range; echo 1 > /proc/sys/net/ipv4/tcp_tw_reuse"
	if said, err := output.Of(exec.CommandContext(ctx, "ip", "netns", "exec", name, "sh", "-c", script)); err != nil {
		return fmt.Errorf("cannot set up namespace %s: %w: %s", name, err, said)
	}
	return upLink(ctx, name)
}

// upLink connects a namespace to another host with a link of rate linkRate.
func upLink(ctx context.Context, name string) error {
	_ = exec.CommandContext(ctx, "ip", "netns", "del", name+far).Run()
	for _, args := range []string{
		"ip netns add " + name + far, "ip -n " + name + " link add name link type veth peer name link netns " + name + far,
		"ip -n " + name + " addr add " + nearAddr + "/24 dev link", "ip -n " + name + " link set dev link up",
		"ip -n " + name + far + " addr add " + farAddr + "/24 dev link", "ip -n " + name + far + " link set dev link up",
		"ip -n " + name + far + " route add default via " + nearAddr,
		"tc -n " + name + " qdisc replace dev link root tbf rate " + linkRate + " burst 256kb latency 20ms",
	} {
		argv := strings.Fields(args)
		if said, err := output.Of(exec.CommandContext(ctx, argv[0], argv[1:]...)); err != nil {
			return fmt.Errorf("%s: %w: %s", args, err, said)
		}
	}
	return nil
}

// start runs a program in a namespace until the run ends. If it is this program, start waits for its "ready".
func (r *rig) start(ctx context.Context, namespace, name string, argv ...string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--net=/run/netns/" + namespace, "--"}, argv...)...)
	log, err := os.Create(filepath.Join(r.dir, namespace+"-"+name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stderr = log
	if argv[0] != r.self {
		cmd.Stdout = log
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		r.started(namespace, cmd)
		return cmd, nil
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r.started(namespace, cmd)
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		return nil, fmt.Errorf("%s did not start: %v: %s", name, err, readTail(log.Name()))
	}
	return cmd, nil
}

func (r *rig) started(namespace string, cmd *exec.Cmd) {
	r.processes = append(r.processes, cmd)
	r.inside[namespace] = append(r.inside[namespace], cmd.Process.Pid)
}

// used returns the processor time in seconds of all programs in a namespace so far, including idle ones.
func (r *rig) used(namespace string) (seconds float64) {
	for _, pid := range r.inside[namespace] {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		for _, path := range threads {
			data, err := os.ReadFile(path)
			if fields := strings.Fields(string(data)); err == nil && len(fields) > 0 {
				nanoseconds, _ := strconv.ParseFloat(fields[0], 64)
				seconds += nanoseconds / 1e9
			}
		}
	}
	return seconds
}

func readTail(path string) string {
	data, _ := os.ReadFile(path)
	return string(data[max(0, len(data)-2000):])
}

func (r *rig) close() {
	for _, cmd := range r.processes {
		end(cmd)
	}
	for _, s := range r.servers {
		_ = s.Close()
	}
	for _, namespace := range r.spaces {
		_ = exec.Command("ip", "netns", "del", namespace+far).Run()
		_ = exec.Command("ip", "netns", "del", namespace).Run()
	}
	_ = os.RemoveAll(r.dir)
	for _, s := range r.sides {
		if s.cgroup != "" {
			_ = os.Remove(s.cgroup)
		}
	}
}

func end(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func resident(cmd *exec.Cmd) func() (int64, error) {
	return func() (int64, error) { return RSS(cmd.Process.Pid) }
}

func (r *rig) naive(ctx context.Context) side {
	s := side{name: naiveName, namespace: plain, addr: naiveAddr}
	cmd, err := r.start(ctx, plain, "naive", r.self, "traffic-naive", naiveAddr, serverAddr)
	if err != nil {
		s.missing = err.Error()
		return s
	}
	s.resident = resident(cmd)
	return s
}

// haproxy installs HAProxy if it is missing.
func (r *rig) haproxy(ctx context.Context) side {
	s := side{name: "HAProxy", namespace: plain, addr: haproxyAt}
	if _, err := exec.LookPath("haproxy"); err != nil {
		install := exec.CommandContext(ctx, "apt-get", "install", "-y", "--no-install-recommends", "haproxy")
		if said, err := output.Of(install); err != nil {
			s.missing = fmt.Sprintf("cannot install it: %v: %s", err, said)
			return s
		}
	}
	cmd, err := r.startHAProxy(ctx, 0)
	if err == nil {
		err = r.answers(ctx, s)
	}
	if err != nil {
		s.missing = err.Error()
		return s
	}
	s.resident = resident(cmd)
	return s
}

// startHAProxy starts HAProxy with the ports of the loads, or with count others.
func (r *rig) startHAProxy(ctx context.Context, count int) (*exec.Cmd, error) {
	var config strings.Builder
	fmt.Fprint(&config, "global\n maxconn 9000\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 1h\n timeout server 1h\n")
	listen := func(name, addr string, port int) {
		fmt.Fprintf(&config, "listen %s\n bind %s:%d\n server s %s:%d\n", name, addr, port, serverAddr, port)
	}
	if count == 0 {
		for _, port := range []int{requestPort, bulkPort, connectPort} {
			listen(fmt.Sprint("p", port), haproxyAt, port)
		}
	}
	for i := range count {
		listen(fmt.Sprint("m", i), fmt.Sprintf("10.77.%d.%d", 1+i/250, 1+i%250), requestPort)
	}
	path := filepath.Join(r.dir, fmt.Sprintf("haproxy-%d.cfg", count))
	if err := os.WriteFile(path, []byte(config.String()), 0o644); err != nil {
		return nil, err
	}
	return r.start(ctx, plain, fmt.Sprint("haproxy-", count), "haproxy", "-db", "-f", path)
}

// upstream returns the side of kube-proxy 1.36.3 in nftables mode, built from its module.
func (r *rig) upstream(ctx context.Context) side {
	s := side{name: "nftables", namespace: ruled, addr: serviceIP, udp: true}
	path := filepath.Join(r.root, "_output/tools/kube-proxy")
	build := exec.CommandContext(ctx, "go", "build", "-C", filepath.Join(r.root, "hack/tools/kubernetes"), "-trimpath", "-o", path, "k8s.io/kubernetes/cmd/kube-proxy")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := output.Of(build); err != nil {
		s.missing = fmt.Sprintf("cannot build it: %v: %s", err, said)
		return s
	}
	config, err := r.serveAPI(ctx, ruled, 0, apiPort)
	if err == nil {
		_, err = r.start(ctx, ruled, "kube-proxy", path, "--kubeconfig="+config, "--hostname-override="+nodeName, "--proxy-mode=nftables",
			"--conntrack-max-per-core=0", "--conntrack-min=0", "--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s")
	}
	if err == nil {
		err = r.answers(ctx, s)
	}
	if err != nil {
		s.missing = err.Error() + ": " + readTail(filepath.Join(r.dir, ruled+"-kube-proxy.log"))
	}
	return s
}

func (r *rig) ours(ctx context.Context) side {
	build := exec.CommandContext(ctx, "hack/build.sh", "cmd/kube-proxy")
	build.Dir = r.root
	if said, err := output.Of(build); err != nil {
		return side{name: "relay", missing: fmt.Sprintf("cannot build it: %v: %s", err, said)}
	}
	return r.relay(ctx, "relay", plain, r.program())
}

// program returns the path of our built proxy.
func (r *rig) program() string {
	return filepath.Join(r.root, "_output/bin/linux", runtime.GOARCH, "proxy")
}

// relay starts a build of our proxy in a namespace.
func (r *rig) relay(ctx context.Context, name, namespace, program string, flags ...string) side {
	s := side{name: name, namespace: namespace, addr: serviceIP, udp: true}
	cmd, err := r.startRelay(ctx, namespace, program, 0, flags...)
	if err == nil {
		err = r.answers(ctx, s)
	}
	if err != nil {
		s.missing = err.Error() + ": " + readTail(filepath.Join(r.dir, namespace+"-proxy-0.log"))
		return s
	}
	s.resident = resident(cmd)
	return s
}

// startOurs starts our proxy with the Service of the loads and count others.
func (r *rig) startOurs(ctx context.Context, count int) (*exec.Cmd, error) {
	return r.startRelay(ctx, plain, r.program(), count)
}

func (r *rig) startRelay(ctx context.Context, namespace, program string, count int, flags ...string) (*exec.Cmd, error) {
	port := strconv.Itoa(6080 + count)
	config, err := r.serveAPI(ctx, namespace, count, port)
	if err != nil {
		return nil, err
	}
	argv := append([]string{"env", "INTERFACE_TO_ADD_SERVICE_IP=lo", program, "--kubeconfig=" + config, "--hostname-override=" + nodeName,
		"--healthz-bind-address=127.0.0.1:" + strconv.Itoa(7080+count), "--metrics-bind-address=127.0.0.1:" + strconv.Itoa(17080+count), "--network-mode=upstream", "--profiling"}, flags...)
	return r.start(ctx, namespace, fmt.Sprint("proxy-", count), argv...)
}

// answers waits until a side responds.
func (r *rig) answers(ctx context.Context, s side) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		held, err := r.hold(ctx, s, 1)
		if err == nil {
			held()
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("does not serve: %w", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// client runs one load through a side. It returns the figures, and the processor time in seconds that all programs
// used.
func (r *rig) client(ctx context.Context, s side, l load) (figures []float64, used float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 20*perRound)
	defer cancel()
	namespace := s.namespace
	if l.link {
		namespace += far
	}
	argv := append([]string{"--net=/run/netns/" + namespace, "--", r.self, "traffic-client", l.mode, s.addr}, l.args...)
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "nsenter", argv...)
	cmd.Stderr = &stderr
	cgroup, err := s.into(cmd)
	if err != nil {
		return nil, 0, err
	}
	defer cgroup.Close()
	before := r.used(s.namespace)
	out, err := cmd.Output()
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %s", err, stderr.Bytes())
	}
	used = r.used(s.namespace) - before + (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	return figures, used, json.Unmarshal(out, &figures)
}

// hold opens n connections through a side until the returned function is called. It fails if the side cannot open them
// within a minute.
func (r *rig) hold(ctx context.Context, s side, n int) (func(), error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	cmd := exec.CommandContext(ctx, "nsenter", "--net=/run/netns/"+s.namespace, "--", r.self, "traffic-client", "hold", s.addr, strconv.Itoa(n))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cgroup, err := s.into(cmd)
	if err != nil {
		cancel()
		return nil, err
	}
	defer cgroup.Close()
	in, err := cmd.StdinPipe()
	if err != nil {
		cancel()
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if line != "ready\n" {
		cancel()
		_ = cmd.Wait()
		return nil, fmt.Errorf("%w: %s", err, stderr.Bytes())
	}
	return func() {
		defer cancel()
		_ = in.Close()
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
	}, nil
}

// fronts compares programs that have many fronts with programs that have none, in KiB per front.
func (r *rig) fronts(ctx context.Context) ([]float64, error) {
	out := make([]float64, len(r.sides))
	for i, s := range r.sides {
		var start func(context.Context, int) (*exec.Cmd, error)
		addr := "10.96.1.1"
		switch s.name {
		case "HAProxy":
			start, addr = r.startHAProxy, "10.77.1.1"
		case "relay":
			start = r.startOurs
			// The previous instance holds the fronts' address, and its memory includes earlier work.
			if err := r.endOurs(); err != nil {
				return nil, err
			}
		}
		if start == nil || s.missing != "" {
			continue
		}
		var sizes [2]float64
		for j, count := range []int{1, 1 + manyPorts} {
			cmd, err := start(ctx, count)
			if err != nil {
				return nil, err
			}
			if err := r.answers(ctx, side{namespace: s.namespace, addr: addr}); err != nil {
				return nil, err
			}
			rss, err := idle(cmd.Process.Pid)
			if err != nil {
				return nil, err
			}
			end(cmd)
			sizes[j] = float64(rss)
		}
		out[i] = (sizes[1] - sizes[0]) / manyPorts / 1024
	}
	return out, nil
}

func (r *rig) endOurs() error {
	for _, cmd := range r.processes {
		if strings.Contains(strings.Join(cmd.Args, " "), "INTERFACE_TO_ADD_SERVICE_IP") && cmd.ProcessState == nil {
			end(cmd)
			return nil
		}
	}
	return errors.New("our proxy has ended")
}
