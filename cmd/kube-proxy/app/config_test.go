package app

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func configAt(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "proxy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// kubeadmConfig is as kubeadm writes it: with every field, most of them empty.
const kubeadmConfig = header + `bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 0
  contentType: ""
  kubeconfig: /var/lib/kube-proxy/kubeconfig.conf
  qps: 0
clusterCIDR: 10.244.0.0/16
configSyncPeriod: 0s
conntrack: {maxPerCore: null, min: null, tcpBeLiberal: false, tcpCloseWaitTimeout: null, tcpEstablishedTimeout: null, udpStreamTimeout: 0s, udpTimeout: 0s}
detectLocal: {bridgeInterface: "", interfaceNamePrefix: ""}
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: ""
hostnameOverride: ""
iptables: {localhostNodePorts: null, masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
ipvs: {excludeCIDRs: null, minSyncPeriod: 0s, scheduler: "", strictARP: false, syncPeriod: 0s, tcpFinTimeout: 0s, tcpTimeout: 0s, udpTimeout: 0s}
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
metricsBindAddress: ""
mode: ""
nftables: {masqueradeAll: false, masqueradeBit: null, minSyncPeriod: 0s, syncPeriod: 0s}
nodePortAddresses: null
oomScoreAdj: null
portRange: ""
showHiddenMetricsForVersion: ""
winkernel: {enableDSR: false, forwardHealthCheckVip: false, networkName: "", rootHnsEndpointName: "", sourceVip: ""}
`

func TestConfigFileOfKubeadm(t *testing.T) {
	t.Setenv(envInterface, "")
	o, fs := mustParse(t, "--config="+configAt(t, kubeadmConfig))
	s, err := o.settings(linux)
	if err != nil {
		t.Fatal(err)
	}
	if o.config.ClientConnection.Kubeconfig != "/var/lib/kube-proxy/kubeconfig.conf" || o.config.ClusterCIDR != "10.244.0.0/16" || o.config.ClientConnection.QPS != 5 || s.config.Healthz.String() != defaultHealthz ||
		s.config.Metrics.String() != defaultMetrics || s.config.Mode != "userspace" {
		t.Errorf("options %+v, settings %+v", o, s)
	}
	if notes := o.notes(fs, s); len(notes) > 0 {
		t.Errorf("said of empty fields: %q", notes)
	}
}

func TestConfigFile(t *testing.T) {
	t.Setenv(envInterface, "")
	file := configAt(t, header+`clientConnection: {kubeconfig: /k, qps: 50.5, burst: 100}
hostnameOverride: Node1
bindAddress: "fd00::1"
nodePortAddresses: [10.0.0.0/8, "fd00::/64"]
conntrack: {udpStreamTimeout: 90s, min: 7, tcpBeLiberal: true}
iptables: {syncPeriod: 10s, masqueradeBit: 14}
featureGates: {A: true, B: false}
oomScoreAdj: -999
logging: {verbosity: 3}
metricsBindAddress: 127.0.0.1:1
`)
	o, fs := mustParse(t, "--config", file, "--kube-api-burst=7", "--metrics-bind-address=127.0.0.1:2")
	s, err := o.settings(linux)
	if err != nil {
		t.Fatal(err)
	}
	if o.config.ClientConnection.Kubeconfig != "/k" || o.config.ClientConnection.QPS != 50.5 || o.config.ClientConnection.Burst != 7 || s.config.Node.Name != "node1" || len(s.nodePorts) != 2 || s.udpIdle.Seconds() != 90 ||
		s.config.Resync.Seconds() != 10 || s.config.Metrics.Port() != 2 || s.config.Healthz.String() != "[::]:10256" || o.config.FeatureGates["B"] || len(o.config.FeatureGates) != 2 || fs.Lookup("v").Value.String() != "3" {
		t.Errorf("options %+v, settings %+v", o, s)
	}
	want := []string{"Ignored conntrack.tcpBeLiberal (proxy.yaml:7)", "Ignored iptables.masqueradeBit (proxy.yaml:8)", "Ignored oomScoreAdj (proxy.yaml:10)"}
	for _, part := range want {
		if n := len(slices.DeleteFunc(o.notes(fs, s), func(note string) bool { return !strings.Contains(note, part) })); n != 1 {
			t.Errorf("%s was said %d times in %q", part, n, o.notes(fs, s))
		}
	}
	o.writeConfigTo = filepath.Join(t.TempDir(), "out.yaml")
	if err := o.writeConfig(fs); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(o.writeConfigTo)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"kind: KubeProxyConfiguration", "burst: 7", "qps: 50.5", "oomScoreAdj: -999", "udpStreamTimeout: 1m30s", "- 10.0.0.0/8", "A: true", "B: false", `mode: ""`} {
		if !strings.Contains(string(data), part) {
			t.Errorf("no %s in\n%s", part, data)
		}
	}
	// What was written has the same meaning when read again.
	again, fs2 := mustParse(t, "--config", configAt(t, string(data)))
	first, err1 := o.effective(fs)
	second, err2 := again.effective(fs2)
	a, _ := json.Marshal(first)
	b, _ := json.Marshal(second)
	if err1 != nil || err2 != nil || string(a) != string(b) {
		t.Errorf("%v, %v\nwrote %s\nread  %s", err1, err2, a, b)
	}
}

// TestConfigFileMistakes: each error has the line number.
func TestConfigFileMistakes(t *testing.T) {
	t.Setenv(envInterface, "")
	for text, want := range map[string]string{
		header + "clusterCidr: 10.0.0.0/8":                     "line 3: clusterCidr: unknown field; want clusterCIDR",
		header + "master: x":                                   "line 3: master: unknown field",
		header + "clientConnection:\n  burst: much":            `line 4: clientConnection.burst: "much" is no number`,
		"apiVersion: v1\nkind: Pod":                            "want apiVersion: kubeproxy.config.k8s.io/v1alpha1",
		header + "bindAddress: 1.2.3.4\nclusterCIDR: everyone": "proxy.yaml:4: clusterCIDR: --cluster-cidr=everyone: want a range",
		header + "nodePortAddresses: [10.0.0.0/33]":            "proxy.yaml:3: nodePortAddresses: --nodeport-addresses=10.0.0.0/33: want ranges",
		header + "mode: ipvs":                                  "proxy.yaml:3: mode: --proxy-mode=ipvs: want auto, userspace",
		header + "configSyncPeriod: -1s":                       "proxy.yaml:3: configSyncPeriod: --config-sync-period=-1s",
		"":                                                     `it is "" ""`,
	} {
		o, _, err := parse([]string{"--master=x", "--config=" + configAt(t, text)})
		if err == nil {
			_, err = o.settings(linux)
			err = o.file.Located(err)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	if _, _, err := parse([]string{"--master=x", "--config=/no/such/file"}); err == nil || !strings.Contains(err.Error(), "--config: open /no/such/file") {
		t.Error(err)
	}
}

// TestBindings: a flag changes the field in its binding, and that field sets the flag.
func TestBindings(t *testing.T) {
	text := func(o *options, fs *pflag.FlagSet, path string) string {
		t.Helper()
		c, err := o.effective(fs)
		if err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		var value any
		if err := json.Unmarshal(data, &value); err != nil {
			t.Fatal(err)
		}
		for part := range strings.SplitSeq(path, ".") {
			value = value.(map[string]any)[part]
		}
		return fmt.Sprint(value)
	}
	values := map[string]string{"bool": "true", "int32": "77", "float32": "77", "duration": "77s", "stringToBool": "G=true", "stringSlice": "a,b", "string": "x", "count": "7"}
	for _, b := range bindings {
		o, fs := mustParse(t)
		f := fs.Lookup(b.Flag)
		if f == nil && b.Flag == "windows-service" {
			continue
		}
		if f == nil {
			t.Errorf("%s: no flag --%s", b.Path, b.Flag)
			continue
		}
		value := values[f.Value.Type()]
		if b.Flag == "logging-format" {
			continue // text is the only one
		}
		switch {
		case b.Flag == "vmodule":
			value = "x=7"
		case value == "":
			value = "7"
		}
		before, given := text(o, fs, b.Path), f.Value.String()
		if err := f.Value.Set(value); err != nil {
			t.Errorf("--%s=%s: %v", b.Flag, value, err)
		}
		if after := text(o, fs, b.Path); after == before {
			t.Errorf("--%s=%s leaves %s as it was: %s", b.Flag, value, b.Path, after)
		}
		if b.Flag == "v" || b.Flag == "vmodule" || b.Flag == "log-flush-frequency" { // they belong to the process
			if err := f.Value.Set(given); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestRetiredFlags: command lines of many releases of upstream's proxy are accepted.
func TestRetiredFlags(t *testing.T) {
	t.Setenv(envInterface, "")
	o, fs := mustParse(t, "--master=x", "--masquerade-all", "--conntrack-min", "0", "--conntrack-max-per-core=0", "--ipvs-strict-arp=true", "--oom-score-adj=-999",
		"--detect-local-mode=NodeCIDR", "--bind-address-hard-fail", "--proxy-port-range=1-2", "--cleanup-ipvs")
	if s, err := o.settings(linux); err != nil || fs.NArg() > 0 || s.tracked != 0 {
		t.Errorf("%v, left over %q, %+v", err, fs.Args(), s)
	}
	if code := Main([]string{"--init-only"}); code != 0 {
		t.Errorf("--init-only: exit code %d", code)
	}
	if code := Main([]string{"--init-only", "--proxy-mode=ipvs"}); code == 0 { // for node join
		t.Error("--init-only accepts a mode that does not exist")
	}
}
