package e2e

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/winkube/winkube/pkg/network/podlink"
	"github.com/winkube/winkube/test/lab"
)

// damage is one external change to a node's network, and how to detect its repair.
type damage struct {
	name string
	do   []string                     // command line on the node
	see  []string                     // its output changes with the damage
	each func(fields []string) string // instead of do: returns the command line for each entry that see prints
	want string                       // output of see before the damage
	// Instead of do and see, if the engine does the damage.
	act  func(context.Context) error
	look func(context.Context) string
}

// cut disconnects a pod from its network.
func cut(engine *lab.Engine, pod, sandbox string) damage {
	if cluster.KubeletInterfaces() {
		port := podlink.PortName(sandbox)
		return damage{name: "pod " + pod + "'s interface deleted", do: words("ip link del " + port), see: words("ip -br link show " + port)}
	}
	return damage{name: "pod " + pod + " disconnected", act: func(ctx context.Context) error { return engine.Disconnect(ctx, "winkube", sandbox) },
		look: func(ctx context.Context) string {
			details, err := engine.Inspect(ctx, sandbox)
			if err != nil {
				return err.Error()
			}
			return details.NetworkSettings.Networks["winkube"].IPAddress
		}}
}

// damages returns those that apply to the cluster's mode. other is the pod range of the other node, gateway the address
// of this node's.
func damages(other, gateway string) []damage {
	list := []damage{
		{name: "route deleted", do: words("ip route del " + other), see: words("ip route show " + other)},
		{name: "all our routes flushed", do: words("ip route flush proto 157"), see: words("ip route show proto 157")},
		{name: "gateway address removed", do: words("ip addr del " + gateway + " dev winkube0"), see: words("ip -o -4 addr show dev winkube0 scope global")},
		{name: "bridge down", do: words("ip link set winkube0 down"), see: words("ip -br link show winkube0 up")},
		{name: "bridge deleted", do: words("ip link del winkube0"), see: words("ip -br link show master winkube0")},
		{name: "packet filter flushed", do: words("iptables -F WINKUBE-FORWARD"), see: words("iptables -S WINKUBE-FORWARD")},
	}
	if cluster.NetworkMode == "overlay" {
		list = append(list,
			damage{name: "tunnel deleted", do: words("ip link del winkube.4096"), see: words("bridge fdb show dev winkube.4096")},
			damage{name: "tunnel down", do: words("ip link set winkube.4096 down"), see: words("ip -br link show winkube.4096 up")},
			damage{name: "tunnel's address removed", do: words("ip addr flush dev winkube.4096 scope global"), see: words("ip -o -4 addr show dev winkube.4096")},
			damage{name: "neighbours deleted", each: func(entry []string) string { return "ip neigh del " + entry[0] + " dev winkube.4096" },
				see: words("ip neigh show dev winkube.4096 nud permanent")}, // 10.244.0.0 lladdr 0e:2a:0a:f4:00:00 PERMANENT. A flush goes on until none comes back
			damage{name: "forwarding entries deleted", each: func(entry []string) string { return "bridge fdb del " + entry[0] + " dev winkube.4096 dst " + entry[2] },
				see: words("bridge fdb show dev winkube.4096")}, // 0e:2a:0a:f4:00:00 dst 172.30.0.12 self permanent
		)
	}
	return list
}

func words(line string) []string { return strings.Fields(line) }

// strike does the damage. It deletes entries one by one, as listed.
func (d damage) strike(ctx context.Context, node *lab.Host) error {
	if d.act != nil {
		return d.act(ctx)
	}
	if d.each == nil {
		_, err := node.Exec(ctx, d.do...)
		return err
	}
	out, err := node.Exec(ctx, d.see...)
	if err != nil {
		return err
	}
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		entry := words(line)
		if len(entry) == 0 { // the repair of the last damage has not restored it yet
			continue
		}
		if _, err := node.Exec(ctx, words(d.each(entry))...); err != nil {
			return err
		}
	}
	return nil
}

// changing matches what may differ between equal listings: interface indexes, and the random names and MAC addresses of
// ports, also of reconnected pods.
var changing = regexp.MustCompile(`^(\d+: |(?:veth|wkp)\S+ +(\w+) +[0-9a-f:]{17})`)

func (d damage) listing(ctx context.Context, node *lab.Host) string {
	if d.look != nil {
		return d.look(ctx)
	}
	out, err := node.Exec(ctx, d.see...)
	if err != nil {
		return "" // no such interface
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i := range lines {
		lines[i] = strings.Join(words(changing.ReplaceAllString(lines[i], "$2")), " ")
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

var lostLine = regexp.MustCompile(`(\d+) requests, (\d+) lost`)

// TestNetworkChaos removes routes, bridges, addresses, rules and tunnels from a node under traffic, one after the
// other, for at least WINKUBE_NETWORK_CHAOS (default: one round; for example 5m). It prints the time of each repair and
// the number of failed requests.
func TestNetworkChaos(t *testing.T) {
	span := time.Duration(0)
	if text := os.Getenv("WINKUBE_NETWORK_CHAOS"); text != "" {
		var err error
		if span, err = time.ParseDuration(text); err != nil {
			t.Fatalf("WINKUBE_NETWORK_CHAOS=%s: want a duration such as 5m", text)
		}
	}
	tr := startTraffic(t)
	node := cluster.Nodes[0]
	ranges := map[string]string{}
	for _, n := range cluster.Nodes {
		ranges[n.Name] = tr.node(n.Name).Spec.PodCIDR
	}
	gateway := strings.Replace(ranges[node.Name], ".0/", ".1/", 1)
	list := append(damages(ranges[cluster.Nodes[1].Name], gateway), cut(node.Engine(), "echo", tr.sandboxOf(node, tr.get("echo"))))
	for i := range list {
		if list[i].want = list[i].listing(t.Context(), node); list[i].want == "" {
			t.Fatalf("%s: there is nothing to damage", list[i].name)
		}
	}
	before := tr.snapshot()
	repairs := map[string][]time.Duration{}
	longest, seen := tr.during(max(span, time.Duration(len(list))*2*time.Second), func() {
		for begin, round := time.Now(), 0; round == 0 || time.Since(begin) < span; round++ {
			for _, d := range list {
				repairs[d.name] = append(repairs[d.name], tr.repaired(node, d))
			}
		}
	})
	if diff := difference(before, tr.snapshot()); diff != "" {
		t.Errorf("containers or restart counts changed:\n%s", diff)
	}
	slowest := time.Duration(0)
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "DAMAGE\tTIMES\tMEDIAN\tLONGEST")
	for _, d := range list {
		took := slices.Sorted(slices.Values(repairs[d.name]))
		slowest = max(slowest, took[len(took)-1])
		fmt.Fprintf(w, "%s\t%d\t%d ms\t%d ms\n", d.name, len(took), took[len(took)/2].Milliseconds(), took[len(took)-1].Milliseconds())
	}
	w.Flush()
	asked, lost := 0, 0
	for _, match := range lostLine.FindAllStringSubmatch(seen, -1) {
		n, _ := strconv.Atoi(match[1])
		m, _ := strconv.Atoi(match[2])
		asked, lost = asked+n, lost+m
	}
	t.Logf("mode %s\n%s%d of %d requests lost, longest silence %s", cluster.NetworkMode, b.String(), lost, asked, longest)
	t.Logf("stream between pods: %s", tr.unbroken()) // last, because it ends the test if the stream broke
	// A client may wait for TCP's next attempt after the repair, which takes longer on a slow machine.
	if most := 10*time.Second + slowest; asked == 0 || longest > most {
		t.Errorf("%d requests, the service was silent for %s, want at most %s:\n%s", asked, longest, most, seen)
	}
}

// repaired does the damage and waits until the state is as before.
func (tr *traffic) repaired(node *lab.Host, d damage) time.Duration {
	tr.Helper()
	ctx := context.Background()
	if err := d.strike(ctx, node); err != nil {
		tr.Errorf("%s: %v", d.name, err)
		return 0
	}
	begin := time.Now()
	for have := ""; ; {
		if have = d.listing(ctx, node); have == d.want {
			return time.Since(begin)
		}
		if time.Since(begin) > time.Minute {
			tr.Fatalf("%s: not repaired after a minute; was\n%s\nis\n%s", d.name, d.want, have)
		}
		time.Sleep(10 * time.Millisecond) // the kernel's tables can only be polled
	}
}
