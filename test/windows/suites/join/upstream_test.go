package join

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/winkube/winkube/test/windows/launch"
)

// TestUpstreamProxy lets upstream's kube-proxy.exe watch the real API server, with a proxy's credentials, and compares its HNS objects with
// testdata/upstream.txtar.
func TestUpstreamProxy(t *testing.T) {
	t.Parallel()
	exe := filepath.Join(cluster.Root, "_output/tools/windows/kube-proxy.exe")
	if _, err := os.Stat(exe); err != nil {
		t.Fatalf("%v: hack/test-windows.sh builds it", err)
	}
	host := <-free
	t.Cleanup(func() { free <- host })
	m := newMember(t, host, 20348)
	m.upstreamNode()
	m.bridge()
	config := fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: 'Z:%s'}
mode: kernelspace
hostnameOverride: %s
bindAddress: %s
winkernel: {networkName: cbr0, enableDSR: true}
`, strings.ReplaceAll(host.PKI("proxy.kubeconfig"), "/", `\`), host.Name, host.Addr)
	if err := os.WriteFile(m.Path(`C:\config`), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	launch.Start(m.T, "kube-proxy.exe", m.Command(m.Context(), exe, `--config=C:\config`, "--v=4"))
	const golden = "testdata/upstream.txtar"
	archive, err := txtar.ParseFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	for i := range archive.Files {
		file := &archive.Files[i]
		if strings.HasSuffix(file.Name, ".yaml") {
			m.apply(string(file.Data))
			continue
		}
		want := string(file.Data)
		m.until(3*time.Minute, file.Name, func(context.Context) error {
			if got := m.balanced(); got != want {
				return fmt.Errorf("HNS has\n%s\nwanted is\n%s", got, want)
			}
			return nil
		})
	}
	if unknown := m.world.Log.Unknown(); len(unknown) > 0 {
		t.Errorf("the simulators were asked for what they do not know: %v", unknown)
	}
	results.set("upstream's kube-proxy.exe, real API server", m.Build, "ok")
}

// upstreamNode creates the Node, because no kubelet registers it here, and the namespace.
func (m *member) upstreamNode() {
	ctx := m.Context()
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.host.Name}}
	if _, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		m.Fatal(err)
	}
	status := fmt.Sprintf(`{"status":{"addresses":[{"type":"InternalIP","address":%q}]}}`, m.host.Addr)
	if _, err := client.CoreV1().Nodes().Patch(ctx, m.host.Name, types.StrategicMergePatchType, []byte(status), metav1.PatchOptions{}, "status"); err != nil {
		m.Fatal(err)
	}
	m.namespace("windows-upstream")
	m.Cleanup(func() {
		if err := m.forget(context.Background()); err != nil {
			m.Error(err)
		}
	})
}

// bridge creates what a CNI plugin creates in HNS: a network and a pod's endpoint.
func (m *member) bridge() {
	m.Helper()
	network := m.hcn("HcnCreateNetwork", "00000000-0000-0000-0000-000000000000", `{"Name":"cbr0","Type":"L2Bridge","Ipams":[{"Type":"Static","Subnets":[{"IpAddressPrefix":"10.254.1.0/24",`+
		`"Routes":[{"NextHop":"10.254.1.2","DestinationPrefix":"0.0.0.0/0"}]}]}],"SchemaVersion":{"Major":2,"Minor":0}}`)
	endpoint := m.hcn("HcnCreateEndpoint", network, "00000000-0000-0000-0000-000000000000",
		`{"Name":"pod","IpConfigurations":[{"IpAddress":"10.254.1.7"}],"SchemaVersion":{"Major":2,"Minor":0}}`)
	m.hcn("HcnCloseEndpoint", endpoint)
	m.hcn("HcnCloseNetwork", network)
}

func (m *member) hcn(function string, args ...string) string {
	m.Helper()
	result, value, record := m.world.HNS.Call(function, args)
	if result != 0 {
		m.Fatalf("%s: %#x %s", function, uint32(result), record)
	}
	return value
}

// apply creates or updates objects in the test's namespace.
func (m *member) apply(objects string) {
	m.Helper()
	path := filepath.Join(m.TempDir(), "objects.yaml")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(objects, "NODE", m.host.Name)), 0o644); err != nil {
		m.Fatal(err)
	}
	if _, err := cluster.Kubectl(m.Context(), "apply", "-n", m.space, "-f", path); err != nil {
		m.Fatal(err)
	}
}

// ownMAC matches a MAC address that HNS assigned.
var ownMAC = regexp.MustCompile(`00-15-5D(-[0-9A-F]{2}){3}`)

// balanced returns the part of HNS's state that belongs to this test's objects: all of them have endpoints in
// 10.254.0.0/16.
func (m *member) balanced() string {
	var b strings.Builder
	before := ""
	for line := range strings.Lines(m.world.HNS.String()) {
		line = ownMAC.ReplaceAllString(line, "MAC")
		if strings.Contains(line, "10.254.") {
			if strings.HasPrefix(line, "  on ") {
				b.WriteString(before)
			}
			b.WriteString(line)
		}
		before = line
	}
	return b.String()
}
