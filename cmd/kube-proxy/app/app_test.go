package app

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/routes"
)

func mustParse(t *testing.T, args ...string) (*options, *pflag.FlagSet) {
	t.Helper()
	t.Cleanup(klog.CaptureState().Restore) // klog's flags are the process's: the next test would log into a directory that is gone
	o, fs, err := parse(args)
	if err != nil {
		t.Fatal(err)
	}
	return o, fs
}

var linux, windows = host.Facts{Hostname: "host1", OS: "linux"}, host.Facts{Hostname: "host1", OS: "windows", WindowsBuild: 20348}

// TestOldCommandLines: the command lines of the first releases work as written, and those of the SDN scripts.
func TestOldCommandLines(t *testing.T) {
	t.Setenv(envInterface, "vEthernet (HNS Internal NIC)")
	o, fs := mustParse(t, "--v=3", "--proxy-mode=userspace", "--hostname-override=Win1", "--master=192.0.2.1:8080", "--bind-address=192.0.2.7")
	s, err := o.settings(windows)
	if err != nil {
		t.Fatal(err)
	}
	if s.serviceInterface != "vEthernet (HNS Internal NIC)" || s.config.Node.Name != "win1" || o.server() != "192.0.2.1:8080" || len(o.notes(fs, s)) > 0 {
		t.Errorf("settings are %+v", s)
	}
	if s.config.Healthz != netip.MustParseAddrPort("0.0.0.0:10256") || s.config.Metrics != netip.MustParseAddrPort("127.0.0.1:10249") {
		t.Errorf("serves %v and %v", s.config.Healthz, s.config.Metrics)
	}
	t.Setenv("KUBE_NETWORK", "l2bridge")
	o, fs = mustParse(t, "--v=4", "--proxy-mode=kernelspace", "--hostname-override=win1", `--kubeconfig=c:\k\config`, "--network-name=vxlan0", "--source-vip=10.244.1.2",
		"--enable-dsr=false", "--log-dir="+t.TempDir(), "--logtostderr=false", "--feature-gates=WinOverlay=true", "--conntrack-min=7", "--cluster-cidr=10.244.0.0/16")
	if s, err = o.settings(windows); err != nil {
		t.Fatal(err)
	}
	if h := s.hns; s.backEnd != byHNS || s.config.Mode != "kernelspace" || h.Network != "vxlan0" || h.SourceVIP.String() != "10.244.1.2" || h.DSR {
		t.Errorf("settings are %+v", s)
	}
	if notes := o.notes(fs, s); len(notes) != 2 || !strings.Contains(notes[0], "Ignored --conntrack-min=7") || !strings.Contains(notes[1], "WinOverlay") {
		t.Errorf("notes %q", notes)
	}
	if s, err = o.settings(linux); err != nil || s.backEnd != byRelay || s.config.Mode != "userspace" {
		t.Errorf("on Linux: %+v %v", s, err)
	}
	notes := strings.Join(o.notes(fs, s), "\n")
	for _, want := range []string{"kernelspace", "KUBE_NETWORK=l2bridge", "--network-name=vxlan0", "--source-vip=10.244.1.2", "--enable-dsr=false", "WinOverlay"} {
		if !strings.Contains(notes, want) {
			t.Errorf("no note of %s in\n%s", want, notes)
		}
	}
}

func TestSettings(t *testing.T) {
	t.Setenv(envInterface, "")
	o, _ := mustParse(t, "--master=x", "--nodeport-addresses=192.0.2.7/24,fd00::/64", "--healthz-bind-address=[::]:1", "--metrics-bind-address=127.0.0.1", "--metrics_port=2",
		"--network-mode=upstream", "--route-next-hop=pod-gateway", "--udp-timeout=250ms", "--client-share=25", "--conntrack-max-per-core=1", "--conntrack-min=200000")
	s, err := o.settings(linux)
	if err != nil {
		t.Fatal(err)
	}
	if s.config.Node.Name != "host1" || s.config.Healthz.String() != "[::]:1" || s.config.Metrics.String() != "127.0.0.1:2" || s.mode != routes.Upstream ||
		s.nextHop != routes.PodGateway || s.udpIdle != 250*time.Millisecond || s.clientShare != 25 || s.tracked != 200000 || len(s.nodePorts) != 2 || s.nodePorts[0].String() != "192.0.2.0/24" {
		t.Errorf("settings are %+v", s)
	}
	for _, share := range []string{"0", "101"} {
		o, _ = mustParse(t, "--master=x", "--client-share="+share)
		if _, err := o.settings(linux); err == nil || !strings.Contains(err.Error(), "--client-share="+share+": want a percentage") {
			t.Errorf("--client-share=%s: %v", share, err)
		}
	}
	o, _ = mustParse(t, "--master=x", "--healthz-bind-address=", "--metrics-port=0")
	if s, err = o.settings(linux); err != nil || s.config.Healthz.IsValid() || s.config.Metrics.IsValid() {
		t.Errorf("turned off: %+v, %v", s, err)
	}
}

// TestMistakes: each is one line that names the flag and the value, and says what would be right.
func TestMistakes(t *testing.T) {
	t.Setenv(envInterface, "")
	for _, c := range []struct{ args, want string }{
		{"", "want --kubeconfig or --master"},
		{"--master=x --hostname-override=a_b", "--hostname-override=a_b"},
		{"--master=x --proxy-mode=iptables", "--proxy-mode=iptables: want auto, userspace"},
		{"--master=x --conntrack-min=-1", "--conntrack-min=-1: want 0 or more"},
		{"--master=x --cluster-cidr=10.0.0.0", "--cluster-cidr=10.0.0.0: want a range"},
		{"--master=x --nodeport-addresses=10.0.0.0/33", "--nodeport-addresses=10.0.0.0/33"},
		{"--master=x --nodeport-addresses=primary,10.0.0.0/8", "--nodeport-addresses=primary"},
		{"--master=x --bind-address=me", "--bind-address=me: want an IP address"},
		{"--master=x --source-vip=me", "--source-vip=me"},
		{"--master=x --healthz-bind-address=me:1", "--healthz-bind-address=me:1"},
		{"--master=x --metrics-bind-address=1.2.3.4:99999", "--metrics-bind-address=1.2.3.4:99999"},
		{"--master=x --healthz-port=70000", "--healthz-port=70000"},
		{"--master=x --network-mode=underlay", "--network-mode"},
		{"--master=x --route-next-hop=north", "--route-next-hop=north: want node or pod-gateway"},
		{"--master=x --config-sync-period=0s", "--config-sync-period=0s"},
	} {
		o, _ := mustParse(t, strings.Fields(c.args)...)
		_, err := o.settings(linux)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", c.args, err)
		}
	}
	server2016 := windows
	server2016.WindowsBuild = 14393
	for _, c := range []struct {
		args, want string
		facts      host.Facts
	}{
		{"--master=x --userspace-backend=netsh", "--userspace-backend=netsh: want relay or portproxy", windows},
		{"--master=x --userspace-backend=portproxy", "want relay", linux},
		{"--master=x --proxy-mode=kernelspace --network-mode=cni", "--network-name or KUBE_NETWORK, the HNS network of the pods, whose name another program chooses with --network-mode=cni", windows},
		{"--master=x --proxy-mode=kernelspace --network-name=cbr0", "build 14393) has no load balancers", server2016},
		{"--master=x --network-mode=overlay", "build 14393) does not support subnets of other nodes, which needs build 17763 (Server 2019, with the updates from KB4489899 on); want host-gateway", server2016},
		{"--master=x --network-mode=overlay --proxy-mode=userspace", "--proxy-mode=userspace: pods of a Windows overlay (--network-mode=overlay) reach Services only through HNS load balancers; want kernelspace", windows},
		{"--master=x --network-mode=overlay --proxy-mode=ipvs", "--proxy-mode=ipvs: want auto, userspace, on Linux connect, or on Windows kernelspace", windows},
	} {
		o, _ := mustParse(t, strings.Fields(c.args)...)
		if _, err := o.settings(c.facts); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.args, err)
		}
	}
	o, _ := mustParse(t, "--master=x", "--userspace-backend=portproxy")
	if s, err := o.settings(server2016); err != nil || s.backEnd != byPortProxy {
		t.Errorf("port proxy rules on Windows: %v %v", s, err)
	}
}

// TestOverlay: on Windows one flag is enough, and explicit settings take precedence.
func TestOverlay(t *testing.T) {
	t.Setenv(envInterface, "")
	t.Setenv("KUBE_NETWORK", "")
	for _, c := range []struct {
		args, backEnd, network, vip string
		facts                       host.Facts
	}{
		{"--master=x", byHNS, "winkube.4096", "invalid IP", windows},
		{"--master=x --proxy-mode=kernelspace --network-name=mine --source-vip=10.244.1.9", byHNS, "mine", "10.244.1.9", windows},
		{"--cleanup", byHNS, "winkube.4096", "invalid IP", windows},
		{"--cleanup --proxy-mode=userspace", byRelay, "winkube.4096", "invalid IP", windows},
		{"--master=x", byRelay, "", "invalid IP", linux},
	} {
		o, _ := mustParse(t, strings.Fields("--network-mode=overlay "+c.args)...)
		s, err := o.settings(c.facts)
		if err != nil || s.backEnd != c.backEnd || s.hns.Network != c.network || s.hns.SourceVIP.String() != c.vip || s.mode != routes.Overlay {
			t.Errorf("%s on %s: %v, %+v", c.args, c.facts.OS, err, s)
		}
		if want := map[string]string{byHNS: "kernelspace", byRelay: "userspace"}[c.backEnd]; err == nil && s.config.Mode != want {
			t.Errorf("%s on %s: mode %s, want %s", c.args, c.facts.OS, s.config.Mode, want)
		}
	}
}

// TestKnownNetwork: the network's name is needed only where another program makes it, also to remove load balancers.
func TestKnownNetwork(t *testing.T) {
	t.Setenv(envInterface, "")
	server2016 := windows
	server2016.WindowsBuild = 14393
	for _, c := range []struct {
		env, args, want string
		facts           host.Facts
	}{
		{"", "--master=x --proxy-mode=kernelspace", "winkube", windows},
		{"", "--master=x --proxy-mode=kernelspace --network-mode=upstream", "winkube", windows},
		{"", "--cleanup", "winkube", windows},
		{"", "--cleanup --network-mode=cni", "", windows},
		{"", "--cleanup --network-mode=cni --network-name=cbr0", "cbr0", windows},
		{"mine", "--cleanup", "mine", windows},
		{"", "--cleanup", "", server2016}, // its HNS has no load balancers
		{"", "--cleanup", "", linux},
	} {
		t.Setenv("KUBE_NETWORK", c.env)
		o, _ := mustParse(t, strings.Fields(c.args)...)
		if s, err := o.settings(c.facts); err != nil || s.hns.Network != c.want {
			t.Errorf("%s: %v, %+v, want network %q", c.args, err, s, c.want)
		}
	}
}

// TestMainFails: mistakes that only the whole command line shows.
func TestMainFails(t *testing.T) {
	t.Setenv(envInterface, "")
	for _, args := range []string{"--no-such-flag", "--master=x argument", "--kubeconfig=/no/such/file", "--v=x", "table", "table -f /no/such/file"} {
		if code := Main(strings.Fields(args)); code != 1 {
			t.Errorf("%s: exit code %d", args, code)
		}
	}
	t.Setenv(envInterface, "no-such-interface")
	if code := Main([]string{"--master=x"}); code != 1 {
		t.Errorf("an interface that does not exist: exit code %d", code)
	}
}

func TestTable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "services.yaml")
	manifest := `
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  metadata: {name: web, namespace: default}
  spec: {clusterIP: 10.96.0.1, internalTrafficPolicy: Local, ports: [{port: 80}]}
- apiVersion: apps/v1
  kind: Deployment
  metadata: {name: web, namespace: default}
---
# nothing here
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints:
- {addresses: [10.244.1.1], nodeName: n1}
- {addresses: [10.244.2.1], nodeName: n2}
`
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	const want = `SERVICE      PORT  KIND       PROTOCOL  FRONT         AFFINITY  SOURCES  BACKENDS
default/web  -     ClusterIP  TCP       10.96.0.1:80  -         -        10.244.2.1:8080 local
`
	for _, args := range [][]string{{"-f", file, "--node", "n2"}, {"-f", "-", "--node=n2"}} {
		var out bytes.Buffer
		command := newTableCommand(strings.NewReader(manifest), &out)
		command.SetArgs(args)
		if err := command.Execute(); err != nil || out.String() != want {
			t.Errorf("%v: %v\n%s", args, err, &out)
		}
	}
}
