package join

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/test/lab"
)

var update = flag.Bool("update", false, "rewrite the golden states by what the simulators have after the join")

// golden is the file of one Windows Server.
func (m *member) golden() string { return fmt.Sprintf("testdata/%d.state", m.Build) }

// state waits until the simulators have what the golden file says. -update writes the file at the first call, right after the join.
func (m *member) state(check string) {
	m.Helper()
	if *update && !m.updated {
		m.updated = true
		text, err := m.dump(m.Context())
		if err := errors.Join(err, os.WriteFile(m.golden(), []byte(text), 0o644)); err != nil {
			m.Fatal(err)
		}
	}
	m.until(30*time.Second, check, func(ctx context.Context) error { return m.sameState(ctx, false) })
	m.did(check, "ok")
}

// sameState compares the simulators with the golden file, or with what is left of it without endpoints.
func (m *member) sameState(ctx context.Context, withoutEndpoints bool) error {
	data, err := os.ReadFile(m.golden())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	got, err := m.dump(ctx)
	if err != nil {
		return err
	}
	want := string(data)
	if withoutEndpoints {
		want = endpointLine.ReplaceAllString(want, "")
	}
	if got != want {
		return fmt.Errorf("%s: the simulators have\n%s\nwanted is\n%s", m.golden(), got, want)
	}
	return nil
}

var (
	endpointLine = regexp.MustCompile(`(?m)^  endpoint .*\n`)
	address      = regexp.MustCompile(`\b\d+\.\d+\.\d+\.\d+\b`)
	hash         = regexp.MustCompile(`\b[0-9a-f]{64}\b`)
	hardware     = regexp.MustCompile(`\b[0-9A-Fa-f]{2}([-:][0-9A-Fa-f]{2}){5}\b`)
	loopback     = regexp.MustCompile(`LUID 0x18[0-9a-f]+`) // IF_TYPE_SOFTWARE_LOOPBACK is 24
	ethernet     = regexp.MustCompile(`LUID 0x6[0-9a-f]{12}\b`)
)

// dump is the simulators' state with names for what varies: addresses that the cluster gave out, IDs, hardware addresses. What belongs to
// others, such as services of other namespaces and the way to the other Windows node, is left out.
func (m *member) dump(ctx context.Context) (string, error) {
	names, err := m.names(ctx)
	if err != nil {
		return "", err
	}
	text := m.world.String()
	text = hash.ReplaceAllString(text, "ID")
	text = hardware.ReplaceAllString(text, "MAC")
	text = loopback.ReplaceAllString(text, "loopback")
	text = ethernet.ReplaceAllString(text, "Ethernet")
	var lines []string
	for line := range strings.Lines(text) {
		foreign := false
		line = address.ReplaceAllStringFunc(line, func(found string) string {
			name, ok := names[found]
			foreign = foreign || !ok
			return name
		})
		if !foreign {
			lines = append(lines, line)
		}
	}
	sortNeighbours(lines)
	return strings.Join(lines, ""), nil
}

// names are the addresses that a golden file may name.
func (m *member) names(ctx context.Context) (map[string]string, error) {
	names := map[string]string{"0.0.0.0": "0.0.0.0", lab.ServiceIP: lab.ServiceIP}
	named := func(prefix, name string) error {
		p, err := netip.ParsePrefix(prefix)
		if err == nil {
			names[p.Addr().String()], names[p.Addr().Next().String()] = name, name+"+1"
		}
		return err
	}
	if err := errors.Join(named(m.podCIDR, "own-pods"), named(fmt.Sprintf("192.168.%d.0/24", 100+m.number()), "nat")); err != nil {
		return nil, err
	}
	for _, host := range cluster.Nodes {
		node, err := client.CoreV1().Nodes().Get(ctx, host.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		names[host.Addr.String()] = host.Name
		if err := named(node.Spec.PodCIDR, "pods-of-"+host.Name); err != nil {
			return nil, err
		}
	}
	services, err := client.CoreV1().Services(m.space).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, one := range services.Items {
		names[one.Spec.ClusterIP] = "service-" + one.Name
	}
	pods, err := client.CoreV1().Pods(m.space).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for _, one := range pods.Items {
		names[one.Status.PodIP] = "pod-" + one.Spec.Containers[0].Name
	}
	return names, nil
}

// number tells the hosts for Windows apart.
func (m *member) number() int { return len(cluster.Nodes) + 1 + slices.Index(cluster.Windows, m.host) }

// sortNeighbours sorts lines of one kind that were sorted by their addresses.
func sortNeighbours(lines []string) {
	kind := func(line string) string {
		rest := strings.TrimLeft(line, " ")
		word, _, _ := strings.Cut(rest, " ")
		return line[:len(line)-len(rest)] + word
	}
	for begin := 0; begin < len(lines); {
		end := begin + 1
		for end < len(lines) && kind(lines[end]) == kind(lines[begin]) {
			end++
		}
		slices.Sort(lines[begin:end])
		begin = end
	}
}
