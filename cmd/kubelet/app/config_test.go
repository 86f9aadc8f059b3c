package app

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/host"
)

const header = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func parse(t *testing.T, args ...string) (*options, *pflag.FlagSet) {
	t.Helper()
	o, fs := &options{}, pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	daemon.AddFlags(fs)
	o.addFlags(fs)
	if err := addRetiredFlags(fs); err != nil {
		t.Fatal(err)
	}
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o, fs
}

// kubeadm writes most fields, with values that mean nothing.
const kubeadmConfig = header + `authentication:
  anonymous: {enabled: false}
  webhook: {cacheTTL: 0s, enabled: true}
  x509: {clientCAFile: ca.crt}
authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///var/run/cri-dockerd.sock
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests-that-are-not-there
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
`

func TestConfigOfKubeadm(t *testing.T) {
	dir := t.TempDir()
	ca := write(t, dir, "ca.crt", "")
	flags := write(t, dir, "flags.env", "KUBELET_KUBEADM_ARGS=\"--hostname-override=joined --node-labels=a=b --register-with-taints=k=v:NoSchedule\"\n")
	o, fs := parse(t, "--kubeadm-flags="+flags, "--bootstrap-kubeconfig="+filepath.Join(dir, "b"), "--kubeconfig="+filepath.Join(dir, "k"),
		"--config="+write(t, dir, "config.yaml", kubeadmConfig), "--node-labels=c=d")
	if err := readFlagsFile(fs, o.kubeadmFlags); err != nil {
		t.Fatal(err)
	}
	if err := o.readConfig(fs, runtime.GOOS); err != nil {
		t.Fatal(err)
	}
	facts, err := host.Read()
	if err != nil {
		t.Fatal(err)
	}
	facts.OS = "linux"
	cfg, err := o.settings(facts)
	if err != nil {
		t.Fatal(o.file.Located(err))
	}
	if o.clientCAFile != ca || cfg.NodeName != "joined" || !o.rotateCertificates || cfg.Healthz != "127.0.0.1:10248" || o.clusterDNS[0] != "10.96.0.10" ||
		o.nodeStatusFrequency.Seconds() != 10 || o.nodeLabels["c"] != "d" || o.nodeLabels["a"] != "" || len(cfg.Node.Taints) != 1 {
		t.Errorf("options %+v", o)
	}
	if notes := o.file.notes(); len(notes) > 0 {
		t.Errorf("said of a file of kubeadm: %q", notes)
	}
}

// TestConfigDropIns: maps are merged, all else is replaced, flags win; what was written means the same again.
func TestConfigDropIns(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir, "config.yaml", header+"maxPods: 50\nkubeReserved: {cpu: 100m}\nauthentication: {webhook: {enabled: false}}\nclusterDNS: [10.0.0.1]\nevictionMaxPodGracePeriod: 7\nport: 1\n"+
		"registerWithTaints: [{key: a, value: b, effect: NoSchedule}]\nproviderID: moon://1\nnodeStatusMaxImages: 0\neventBurst: 3\nshutdownGracePeriodByPodPriority: [{priority: 7, shutdownGracePeriodSeconds: 9}]\nstaticPodURLHeader: {X-Token: [secret]}\nstaticPodURL: http://x\n")
	drop := filepath.Join(dir, "drop")
	if err := os.Mkdir(drop, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, drop, "20-b.conf", header+"maxPods: 60\nclusterDNS: [10.0.0.2]\n")
	write(t, drop, "10-a.conf", header+"maxPods: 70\nkubeReserved: {memory: 1Gi}\n")
	write(t, drop, "notes.txt", "not read")
	o, fs := parse(t, "--config="+file, "--config-dir="+drop, "--port=10250")
	if err := o.readConfig(fs, runtime.GOOS); err != nil {
		t.Fatal(err)
	}
	if o.maxPods != 60 || o.kubeReserved["cpu"] != "100m" || o.kubeReserved["memory"] != "1Gi" || o.tokenWebhook || !slices.Equal(o.clusterDNS, []string{"10.0.0.2"}) || o.port != 10250 || o.providerID != "moon://1" || o.statusMaxImages != 0 || o.eventBurst != 3 || o.shutdown.Total() != 9*time.Second ||
		!slices.Equal(o.taints, []string{"a=b:NoSchedule"}) || !slices.Equal(o.manifestURLHeader, []string{"X-Token: secret"}) {
		t.Errorf("options %+v", o)
	}
	o.writeConfigTo = filepath.Join(dir, "out.yaml")
	if err := o.writeConfig(fs); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(o.writeConfigTo)
	if err != nil || strings.Contains(string(data), "secret") {
		t.Errorf("%v\n%s", err, data)
	}
	again, fs2 := parse(t, "--config="+o.writeConfigTo)
	if err := again.readConfig(fs2, runtime.GOOS); err != nil {
		t.Fatal(err)
	}
	first, err1 := o.effective(fs)
	second, err2 := again.effective(fs2)
	a, _ := json.Marshal(first)
	b, _ := json.Marshal(second)
	if err1 != nil || err2 != nil || string(a) != string(b) {
		t.Errorf("%v, %v\nwrote %s\nread  %s", err1, err2, a, b)
	}
}

// TestConfigMistakes: each is named with its line.
func TestConfigMistakes(t *testing.T) {
	facts, err := host.Read()
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		header + "maxpods: 1":                        "line 3: maxpods: unknown field; want maxPods",
		header + "maxPods: many":                     `line 3: maxPods: "many" is no number`,
		header + "maxPods: 0":                        "",
		header + "maxPods: -1":                       "config.yaml:3: maxPods: --max-pods=-1: want at least 1",
		header + "syncFrequency: 1":                  "line 3: syncFrequency",
		header + "tlsMinVersion: VersionTLS10":       "config.yaml:3: tlsMinVersion: --tls-min-version=VersionTLS10: want VersionTLS12 or VersionTLS13",
		header + "tlsCipherSuites: [X]":              "config.yaml:3: tlsCipherSuites: --tls-cipher-suites: X: want names",
		header + "authentication: {x509: {a: b}}":    "line 3: authentication.x509.a: unknown field",
		header + "readOnlyPort: 10255":               "config.yaml:3: readOnlyPort: --read-only-port=10255: want 0",
		"apiVersion: v1\nkind: Pod":                  "unknown",
		"apiVersion: v1\nkind: KubeletConfiguration": "want apiVersion: kubelet.config.k8s.io/v1beta1",
	} {
		o, fs := parse(t, "--api-servers=https://x", "--config="+write(t, t.TempDir(), "config.yaml", text))
		err := o.readConfig(fs, "linux")
		if err == nil {
			_, err = o.settings(facts)
			err = o.file.Located(err)
		}
		if want == "" && err == nil {
			continue
		}
		if want == "unknown" {
			want = "want apiVersion"
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// TestBindings: every path is a field, every flag one of ours, and a default configuration can be written.
func TestBindings(t *testing.T) {
	o, fs := parse(t)
	c, err := o.effective(fs)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := yaml.Marshal(c); err != nil || !strings.Contains(string(data), "healthzPort: 10248") {
		t.Errorf("%v\n%s", err, data)
	}
	for _, b := range bindings {
		if fs.Lookup(b.Flag) == nil {
			t.Errorf("%s: no flag --%s", b.Path, b.Flag)
		}
	}
}

func TestConfigCheck(t *testing.T) {
	dir := t.TempDir()
	run := func(args ...string) string {
		var out bytes.Buffer
		c := newConfigCommand(&out)
		c.SetArgs(append([]string{"check"}, args...))
		c.SilenceErrors, c.SilenceUsage = true, true
		if err := c.Execute(); err != nil {
			out.WriteString("error: " + err.Error())
		}
		return strings.ReplaceAll(filepath.ToSlash(out.String()), filepath.ToSlash(dir), "")
	}
	good := write(t, dir, "good.yaml", header+"maxPods: 10\ncpuManagerPolicy: static\nauthentication: {webhook: {enabled: true}}\n")
	want := "Ignored cpuManagerPolicy (good.yaml:4): this kubelet has nothing that it could change\n/good.yaml: good; fields that are set: 5\n"
	if got := run(good); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := run(write(t, dir, "bad.yaml", header+"maxPods: -3\n")); !strings.HasPrefix(got, "error: /bad.yaml:3: maxPods: --max-pods=-3") {
		t.Errorf("got %q", got)
	}
}

// TestResolvePath: on Windows, kubeadm and older scripts leave paths that lack their drive or have too much of it.
func TestResolvePath(t *testing.T) {
	there := `C:\var\lib\kubelet\etc\kubernetes\pki\there.crt`
	for _, test := range []struct{ system, path, from, want string }{
		{"linux", "/etc/kubernetes/pki/ca.crt", "/var/lib/kubelet/config.yaml", "/etc/kubernetes/pki/ca.crt"},
		{"linux", "ca.crt", "/var/lib/kubelet/config.yaml", "/var/lib/kubelet/ca.crt"},
		{"linux", "", "/x", ""},
		{"windows", "/etc/kubernetes/pki/ca.crt", `C:\var\lib\kubelet\config.yaml`, `C:\etc\kubernetes\pki\ca.crt`},
		{"windows", `\etc\kubernetes\manifests`, `d:/var/lib/kubelet/config.yaml`, `d:\etc\kubernetes\manifests`},
		{"windows", `/etc/kubernetes/pki/ca.crt`, `/var/lib/kubelet/config.yaml`, `C:\etc\kubernetes\pki\ca.crt`},
		{"windows", `C:\\etc\\kubernetes\\pki\\ca.crt`, `C:\x`, `C:\etc\kubernetes\pki\ca.crt`},
		{"windows", `C:\var\lib\kubelet\etc\kubernetes\pki\ca.crt`, `C:\x`, `C:\etc\kubernetes\pki\ca.crt`},
		{"windows", `/var/lib/kubelet/etc/kubernetes/pki/ca.crt`, `C:\x`, `C:\etc\kubernetes\pki\ca.crt`},
		{"windows", there, `C:\x`, there},
		{"windows", `ca.crt`, `C:\k\config.yaml`, `C:\k\ca.crt`},
		{"windows", `\\server\share\ca.crt`, `C:\x`, `\\server\share\ca.crt`},
		{"windows", "Host", `C:\x`, "Host"},
	} {
		if got := resolvePath(test.path, test.from, test.system, func(path string) bool { return path == there }); got != test.want {
			t.Errorf("%s %s from %s: got %s, want %s", test.system, test.path, test.from, got, test.want)
		}
	}
}

func TestFlagsFile(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "",
		"# nothing\n":             "",
		`KUBELET_KUBEADM_ARGS=""`: "",
		"KUBELET_KUBEADM_ARGS=\"--a=b  --c=d\"\n": "--a=b|--c=d",
		"KUBELET_KUBEADM_ARGS=--a\n":              "--a",
		"OTHER=x":                                 `error: "OTHER=x": want KUBELET_KUBEADM_ARGS="--name=value ..."`,
	} {
		args, err := flagsOf(text)
		got := strings.Join(args, "|")
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	_, fs := parse(t)
	if err := readFlagsFile(fs, filepath.Join(t.TempDir(), "none")); err != nil {
		t.Error(err)
	}
	if err := readFlagsFile(fs, write(t, t.TempDir(), "f", `KUBELET_KUBEADM_ARGS="--no-such=1"`)); err == nil || !strings.Contains(err.Error(), "no-such") {
		t.Error(err)
	}
}
