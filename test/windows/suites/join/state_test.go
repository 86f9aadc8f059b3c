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
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/windows/rig"
)

var update = flag.Bool("update", false, "rewrite the golden states of the Windows Servers by what the simulators have")

// The back ends of proxy.exe, as golden files name them.
const (
	relayed     = "relay"
	portProxied = "portproxy"
	inHNS       = "hnslb"
)

// backEnds runs proxy.exe with port proxy rules, with HNS load balancers if HNS has them, and again with the relay. Each back end removes
// what the previous one left, load balancers if their network is named. No traffic flows through the first two here.
func (m *member) backEnds() {
	named := "--network-name=" + podNetwork
	back := []struct {
		name  string
		flags []string
	}{{portProxied, []string{"--userspace-backend=portproxy"}}, {inHNS, []string{"--proxy-mode=kernelspace", named}}, {relayed, []string{named}}}
	for _, one := range back {
		if one.name == inHNS && !m.world.HNS.V2() {
			continue
		}
		m.proxy.Stop()
		m.startProxy(one.flags...)
		m.proxyServes()
		m.state("state with back end "+one.name, one.name)
	}
	m.services()
}

// proxyServes waits until proxy.exe serves. Before, -update would record what was there before it.
func (m *member) proxyServes() {
	m.Helper()
	const health = "http://127.0.0.1:10256/healthz"
	m.served(time.Minute, health, func(ctx context.Context) error { return m.get(ctx, health, "") })
}

// removeRule removes the kubelet's firewall rule, as Remove-Node.ps1 does.
func (m *member) removeRule() {
	if out, code := m.world.Netsh.Run([]string{"advfirewall", "firewall", "delete", "rule", "name=" + network.FirewallRule}, nil); code != 0 {
		m.Errorf("the kubelet's rule of the firewall: %s", out)
	}
}

// cleanup removes what proxy.exe left on the host, including load balancers, which an older HNS does not have.
func (m *member) cleanup(more ...string) {
	flags := append(append(m.proxyFlags(), more...), "--cleanup", "--network-name="+podNetwork)
	if said, err := m.Finish(m.agent("proxy.exe", flags)); err != nil {
		m.Errorf("proxy.exe --cleanup: %v: %s", err, said)
	}
}

// without removes from a dump what a host with Docker always has, the network nat and its adapter, and forwarding, which stays on.
func (m *member) without(dump string) string {
	var left strings.Builder
	for line := range strings.Lines(dump) {
		if !alwaysThere.MatchString(line) {
			left.WriteString(line)
		}
	}
	return left.String()
}

// golden returns the golden file of one Windows Server and one back end.
func (m *member) golden(backEnd string) string {
	return fmt.Sprintf("testdata/%d-%s.state", m.Build, backEnd)
}

// state waits until the simulators match the golden file. With -update, its first call writes the file once the simulators have not changed
// for some seconds.
func (m *member) state(check, backEnd string) {
	m.Helper()
	if *update && !m.updated[backEnd] {
		m.updated[backEnd] = true
		if err := os.WriteFile(m.golden(backEnd), []byte(m.quiet()), 0o644); err != nil {
			m.Fatal(err)
		}
	}
	m.until(30*time.Second, check, func(context.Context) error { return m.sameState(backEnd) })
	m.did(check, "ok")
}

// quiet returns the simulators' state once it has not changed for some seconds.
func (m *member) quiet() (text string) {
	m.Helper()
	const long = 5 * time.Second
	since := time.Now()
	m.until(time.Minute, "a state that stays", func(ctx context.Context) error {
		now, err := m.dump()
		if now != text {
			text, since = now, time.Now()
		}
		if err == nil && time.Since(since) < long {
			err = errors.New("it changes")
		}
		return err
	})
	return text
}

// sameState compares the simulators with the golden file.
func (m *member) sameState(backEnd string) error {
	data, err := os.ReadFile(m.golden(backEnd))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	got, err := m.dump()
	if err != nil {
		return err
	}
	if want := string(data); got != want {
		return fmt.Errorf("%s: the simulators have\n%s\nwant\n%s", m.golden(backEnd), got, want)
	}
	return nil
}

var (
	address     = regexp.MustCompile(`\b\d+\.\d+\.\d+\.\d+\b`)
	alwaysThere = regexp.MustCompile(`\bnat\b|HNS Internal NIC|^interface "eth0"`)
	nodePort    = regexp.MustCompile(`\b3[0-2]\d{3}\b`)
	varying     = []struct {
		pattern *regexp.Regexp
		name    string
	}{
		{regexp.MustCompile(`\b[0-9a-f]{64}(\b|_)`), "ID$1"},
		{regexp.MustCompile(`\b[0-9A-Fa-f]{2}([-:][0-9A-Fa-f]{2}){5}\b`), "MAC"},
		{regexp.MustCompile(`search [\w-]+\.svc\.`), "search NAMESPACE.svc."}, // in endpoints that the kubelet creates
		{regexp.MustCompile(`fd57:[0-9a-f:]*:(\d+)`), "MARK:$1"},              // pkg/proxy/portproxy marks its rules with such an address
		{regexp.MustCompile(`(winkube port proxy.* tcp) [\d,-]+`), "$1 PORTS"},
	}
)

// dump returns the simulators' state with names in place of varying values: addresses that the cluster assigned, IDs, MAC addresses. It
// excludes others' objects, such as services of other namespaces and the routes to the other Windows node.
func (m *member) dump() (string, error) {
	names, err := m.names()
	if err != nil {
		return "", err
	}
	text := strings.NewReplacer(rig.WindowsPath(bin)+`\`, "", lab.PodCIDR, "all-pods", lab.ServiceCIDR, "all-services", " dns "+lab.DNSAddress+" ", " dns cluster-dns ").Replace(m.world.String() + m.byPowerShell())
	for _, one := range varying {
		text = one.pattern.ReplaceAllString(text, one.name)
	}
	var records []string // a load balancer and its endpoints, or an endpoint and its policies, form one record
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "  on ") || strings.HasPrefix(line, "    policy ") {
			records[len(records)-1] += line
			continue
		}
		records = append(records, line)
	}
	records = slices.DeleteFunc(records, func(record string) bool {
		of := address.FindAllString(record, -1)
		if strings.HasPrefix(record, "portproxy") || strings.HasPrefix(record, "load") {
			of = append(of, nodePort.FindAllString(record, -1)...)
		}
		return slices.ContainsFunc(of, func(found string) bool { return names[found] == "" })
	})
	for i := range records {
		records[i] = address.ReplaceAllStringFunc(records[i], func(found string) string { return names[found] })
	}
	sortNeighbours(records)
	return strings.Join(records, ""), nil
}

// names returns the addresses and node ports that have names in a golden file.
func (m *member) names() (map[string]string, error) {
	names := map[string]string{"0.0.0.0": "0.0.0.0", lab.ServiceIP: lab.ServiceIP, cluster.Control.Addr.String(): "control",
		m.host.Addr.String(): "own-node"}
	if m.flanneld != nil {
		names[netip.PrefixFrom(m.host.Addr, 24).Masked().Addr().String()] = "nodes"
	}
	named := func(prefix, name string) error {
		p, err := netip.ParsePrefix(prefix)
		if err == nil {
			names[p.Addr().String()], names[p.Addr().Next().String()] = name, name+"+1"
		}
		return err
	}
	if own, err := netip.ParsePrefix(m.podCIDR); err == nil { // an address of another node belongs to a pod
		names[own.Addr().Next().Next().String()] = "own-pods+2"
	}
	if err := errors.Join(named(m.podCIDR, "own-pods"), named(fmt.Sprintf("192.168.%d.0/24", 100+m.host.Number()), "nat")); err != nil {
		return nil, err
	}
	for _, host := range cluster.Nodes {
		node, err := watched.Nodes().Lister().Get(host.Name)
		if err != nil {
			return nil, err
		}
		names[host.Addr.String()] = host.Name
		if err := named(node.Spec.PodCIDR, "pods-of-"+host.Name); err != nil {
			return nil, err
		}
	}
	services, err := watched.Services().Lister().Services(m.space).List(labels.Everything())
	if err != nil {
		return nil, err
	}
	for _, one := range services {
		names[one.Spec.ClusterIP] = "service-" + one.Name
		for _, port := range one.Spec.Ports {
			number := strconv.Itoa(int(port.NodePort))
			names[number] = number
		}
	}
	pods, err := watched.Pods().Lister().Pods(m.space).List(labels.Everything())
	if err != nil {
		return nil, err
	}
	for _, one := range pods {
		names[one.Status.PodIP] = "pod-" + one.Spec.Containers[0].Name
	}
	return names, nil
}

// sortNeighbours sorts adjacent lines of one kind, whose order depends on their addresses.
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
