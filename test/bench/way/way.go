//go:build linux

package way

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/lab/check"
	"github.com/winkube/winkube/test/output"
)

const (
	sinkCommand, sourceCommand = "network-sink", "network-source"
	port                       = "5999"
	span                       = 2 * time.Second // of one measurement
	rounds                     = 5
)

// Commands returns the parts that run as separate programs in the networks of hosts and pods.
func Commands() map[string]func([]string) error {
	return map[string]func([]string) error{sinkCommand: sink, sourceCommand: source}
}

// sink reads bytes until its standard input ends.
func sink([]string) error {
	listener, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(io.Discard, conn)
				conn.Close()
			}()
		}
	}()
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// source sends to the sink at an address for the duration of span and prints the bytes per second.
func source(args []string) error {
	if len(args) != 1 {
		return errors.New("want the sink's address")
	}
	conn, err := net.DialTimeout("tcp", net.JoinHostPort(args[0], port), 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	buffer := make([]byte, 128<<10)
	begin, sent := time.Now(), 0
	for time.Since(begin) < span {
		n, err := conn.Write(buffer)
		if err != nil {
			return err
		}
		sent += n
	}
	fmt.Printf("%.0f\n", float64(sent)/time.Since(begin).Seconds())
	return nil
}

// place is the network of a host or a pod, in which programs can run.
type place struct {
	netns string
	addr  string
}

func (p place) command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + p.netns, "--", self}, args...)...), nil
}

// listen starts a sink; the caller calls stop.
func (p place) listen(ctx context.Context) (stop func(), err error) {
	cmd, err := p.command(ctx, sinkCommand)
	if err != nil {
		return nil, err
	}
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop = func() {
		input.Close()
		_ = cmd.Wait()
	}
	if _, err := output.Read(make([]byte, 8)); err != nil {
		stop()
		return nil, fmt.Errorf("the sink in %s did not start: %w", p.netns, err)
	}
	return stop, nil
}

// rate returns the bytes per second from p to another place.
func (p place) rate(ctx context.Context, to place) (float64, error) {
	cmd, err := p.command(ctx, sourceCommand, to.addr)
	if err != nil {
		return 0, err
	}
	said, err := output.Of(cmd)
	if err != nil {
		return 0, fmt.Errorf("cannot send from %s to %s: %w: %s", p.netns, to.addr, err, said)
	}
	return strconv.ParseFloat(strings.TrimSpace(said.Stdout), 64)
}

// linkRate is the rate of a shaped link between hosts: without shaping, the processor limits the throughput of
// namespaces.
const linkRate = "1gbit"

// goals are the minimum ratios of pod-to-pod to host-to-host throughput.
var goals = map[string]float64{"host-gateway": 0.98, "overlay": 0.9}

// Run starts the cluster in each mode (only NETWORK_MODE if set in the environment) and prints all figures.
func Run(ctx context.Context, root string, out io.Writer) error {
	fmt.Fprintln(out, "\nroutes of 1,000 nodes, written to an empty routing table (goal 1000 ms), and one node that got another address (goal 10 ms)")
	if err := thousand(ctx, out); err != nil {
		return err
	}
	modes := []string{"host-gateway", "overlay"}
	if mode := os.Getenv("NETWORK_MODE"); mode != "" {
		modes = []string{mode}
	}
	for _, mode := range modes {
		cluster := lab.New(root, out)
		cluster.NetworkMode = mode
		if err := throughput(ctx, cluster, out); err != nil {
			return err
		}
		if len(modes) == 1 {
			break
		}
		if err := cluster.Down(ctx); err != nil { // existing pods keep the MTU of the previous mode
			return err
		}
	}
	return nil
}

// throughput measures one mode of the cluster, on the unshaped link and on one with linkRate.
func throughput(ctx context.Context, cluster *lab.Cluster, out io.Writer) error {
	if err := cluster.Up(ctx); err != nil {
		return err
	}
	if err := check.Apply(ctx, cluster); err != nil {
		return err
	}
	if _, err := cluster.Kubectl(ctx, "rollout", "status", "daemonset/my-daemonset", "--timeout=60s"); err != nil {
		return err
	}
	var hosts, pods []place
	for _, node := range cluster.Nodes {
		hosts = append(hosts, place{netns: "/run/netns/" + node.Namespace(), addr: node.Addr.String()})
		pod, err := podOf(ctx, cluster, node)
		if err != nil {
			return err
		}
		pods = append(pods, pod)
	}
	for _, p := range []place{hosts[1], pods[1]} {
		stop, err := p.listen(ctx)
		if err != nil {
			return err
		}
		defer stop()
	}
	fmt.Fprintf(out, "\nmode %s, one TCP connection between nodes, median of %d (goal of the ratio %.2f)\n%-12s %12s %12s %8s\n",
		cluster.NetworkMode, rounds, goals[cluster.NetworkMode], "link", "host to host", "pod to pod", "ratio")
	if err := beside(ctx, out, "as it is", hosts, pods); err != nil {
		return err
	}
	if err := alone(ctx, out, cluster.NetworkMode == "overlay"); err != nil {
		return err
	}
	sender := cluster.Nodes[0]
	if _, err := sender.Exec(ctx, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", linkRate, "burst", "256kb", "latency", "20ms"); err != nil {
		return err
	}
	defer func() { _, _ = sender.Exec(context.WithoutCancel(ctx), "tc", "qdisc", "del", "dev", "eth0", "root") }()
	return beside(ctx, out, linkRate, hosts, pods)
}

// beside prints the rates from the first to the second host and pod, one after the other, so that other load affects
// both.
func beside(ctx context.Context, out io.Writer, link string, hosts, pods []place) error {
	var direct, through, ratios []float64
	for range rounds {
		a, err := hosts[0].rate(ctx, hosts[1])
		if err != nil {
			return err
		}
		b, err := pods[0].rate(ctx, pods[1])
		if err != nil {
			return err
		}
		direct, through, ratios = append(direct, a), append(through, b), append(ratios, b/a)
	}
	_, err := fmt.Fprintf(out, "%-12s %7.0f MB/s %7.0f MB/s %8.3f\n", link, median(direct)/1e6, median(through)/1e6, median(ratios))
	return err
}

func median(list []float64) float64 {
	return slices.Sorted(slices.Values(list))[len(list)/2]
}

// podOf returns a running pod of the samples' DaemonSet on a node.
func podOf(ctx context.Context, cluster *lab.Cluster, node *lab.Host) (place, error) {
	address, err := cluster.Kubectl(ctx, "get", "pods", "-l", "app=foo", "--field-selector=status.phase=Running,spec.nodeName="+node.Name,
		"-o", "jsonpath={.items[0].status.podIP} {.items[0].metadata.name}")
	if err != nil {
		return place{}, err
	}
	fields := strings.Fields(address)
	containers, err := node.Engine().Containers(ctx)
	if err != nil {
		return place{}, err
	}
	for _, c := range containers {
		if len(fields) == 2 && c.State == "running" && strings.Contains(strings.Join(c.Names, " "), fields[1]) {
			details, err := node.Engine().Inspect(ctx, c.ID)
			return place{netns: fmt.Sprintf("/proc/%d/ns/net", details.State.Pid), addr: fields[0]}, err
		}
	}
	return place{}, fmt.Errorf("no pod of the daemonset runs on %s: %q", node.Name, address)
}
