package app

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/pod"
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
	o, fs, err := tryParse("linux", args...)
	if err != nil {
		t.Fatal(err)
	}
	return o, fs
}

// tryParse parses a command line and the files that it names.
func tryParse(system string, args ...string) (*options, *pflag.FlagSet, error) {
	o := &options{}
	fs, err := o.parse(args)
	if err != nil {
		return nil, nil, err
	}
	return o.withFiles(fs, args, system)
}

// kubeadm writes most fields, many with zero values that mean unset.
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
	o, _, err := tryParse(runtime.GOOS, "--kubeadm-flags="+flags, "--bootstrap-kubeconfig="+filepath.Join(dir, "b"), "--kubeconfig="+filepath.Join(dir, "k"),
		"--config="+write(t, dir, "config.yaml", kubeadmConfig), "--node-labels=c=d")
	if err != nil {
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
	if c := o.config; c.Authentication.X509.ClientCAFile != ca || cfg.NodeName != "joined" || !c.RotateCertificates || cfg.Healthz != "127.0.0.1:10248" || c.ClusterDNS[0] != "10.96.0.10" ||
		c.NodeStatusUpdateFrequency.Seconds() != 10 || o.node.labels["c"] != "d" || o.node.labels["a"] != "" || len(cfg.Node.Taints) != 1 {
		t.Errorf("options %+v", o)
	}
	if notes := o.notes(); len(notes) > 0 {
		t.Errorf("said of a file of kubeadm: %q", notes)
	}
}

// TestKubeadm: the flag selects the files that kubeadm join writes; the command line takes precedence.
func TestKubeadm(t *testing.T) {
	for _, c := range []struct {
		args []string
		want map[string]string
	}{
		{[]string{"--kubeadm"}, kubeadmFiles(defaultRootDir(), defaultKubeadmDir())},
		{[]string{"--kubeadm", "--kubeconfig=k", "--root-dir=r"}, map[string]string{"kubeconfig": "k", "config": filepath.Join(defaultRootDir(), "config.yaml")}},
		{[]string{"--kubeadm=false"}, map[string]string{"kubeconfig": "", "config": "", "kubeadm-flags": "", "bootstrap-kubeconfig": ""}},
	} {
		fs, err := (&options{}).parse(c.args)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range c.want {
			if got := fs.Lookup(name).Value.String(); got != want {
				t.Errorf("%s: --%s is %q, want %q", c.args, name, got, want)
			}
		}
	}
}

// TestFlagsOfKubeadm: kubeadm doubles backslashes, people do not.
func TestFlagsOfKubeadm(t *testing.T) {
	for text, want := range map[string]string{
		`"--cert-dir=C:\\new\\pki --v=2"` + "\n": `--cert-dir=C:\new\pki|--v=2`,
		`"--cert-dir=C:\new\pki"`:                `--cert-dir=C:\new\pki`,
		`--v=2`:                                  `--v=2`,
		`""`:                                     ``,
	} {
		got, err := flagsOf("# written by kubeadm\n\nKUBELET_KUBEADM_ARGS=" + text)
		if err != nil || strings.Join(got, "|") != want {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
	if _, err := flagsOf("OTHER=1"); err == nil {
		t.Error("another variable is accepted")
	}
}

// TestConfigDropIns: maps are merged, all other fields are replaced, flags take precedence; a written configuration means the same when read back.
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
	o, fs, err := tryParse(runtime.GOOS, "--config="+file, "--config-dir="+drop, "--port=10250")
	if err != nil {
		t.Fatal(err)
	}
	if c := o.config; c.MaxPods != 60 || c.KubeReserved["cpu"] != "100m" || c.KubeReserved["memory"] != "1Gi" || *c.Authentication.Webhook.Enabled || !slices.Equal(c.ClusterDNS, []string{"10.0.0.2"}) ||
		c.Port != 10250 || c.ProviderID != "moon://1" || *c.NodeStatusMaxImages != 0 || c.EventBurst != 3 || c.ShutdownGracePeriodByPodPriority[0].ShutdownGracePeriodSeconds != 9 ||
		len(c.RegisterWithTaints) != 1 || c.RegisterWithTaints[0].ToString() != "a=b:NoSchedule" || !slices.Equal(c.StaticPodURLHeader["X-Token"], []string{"secret"}) {
		t.Errorf("configuration %+v", c)
	}
	o.from.writeTo = filepath.Join(dir, "out.yaml")
	if err := o.writeConfig(fs); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(o.from.writeTo)
	if err != nil || strings.Contains(string(data), "secret") {
		t.Errorf("%v\n%s", err, data)
	}
	again, fs2, err := tryParse(runtime.GOOS, "--config="+o.from.writeTo)
	if err != nil {
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

// TestConfigMistakes: each error includes its line.
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
		o, _, err := tryParse("linux", "--api-servers=https://x", "--config="+write(t, t.TempDir(), "config.yaml", text))
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

// TestFields: a flag changes the field of its binding, and a default configuration can be written.
func TestFields(t *testing.T) {
	o, fs := parse(t)
	c, err := o.effective(fs)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := yaml.Marshal(c); err != nil || !strings.Contains(string(data), "healthzPort: 10248") {
		t.Errorf("%v\n%s", err, data)
	}
	for _, b := range o.fields {
		o, fs := parse(t)
		before := fieldText(t, o, fs, b.Path)
		f := fs.Lookup(b.Flag)
		if f == nil {
			t.Errorf("%s: no flag --%s", b.Path, b.Flag)
			continue
		}
		changed := false
		for _, text := range []string{"7", "true", "false", "7s", "a=true", "a=b:NoSchedule", "a: b", "json", "x=1"} {
			if fs.Set(b.Flag, text) == nil && fieldText(t, o, fs, b.Path) != before {
				changed = true
				break
			}
		}
		if !changed {
			t.Errorf("--%s does not change %s", b.Flag, b.Path)
		}
	}
}

// fieldText returns the field at a path of JSON names, from the current configuration with its headers.
func fieldText(t *testing.T, o *options, fs *pflag.FlagSet, path string) string {
	t.Helper()
	c, err := o.effective(fs)
	if err != nil {
		t.Fatal(err)
	}
	c.StaticPodURLHeader = o.config.StaticPodURLHeader
	data, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	var at any
	if err := json.Unmarshal(data, &at); err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(path, ".") {
		fields, _ := at.(map[string]any)
		at = fields[name]
	}
	return fmt.Sprint(at)
}

// TestValues: value formats that only one flag has.
func TestValues(t *testing.T) {
	o, _ := parse(t, "--event-qps=5.0", "--feature-gates=A=true,B=false", "--feature-gates=C=true", "--register-with-taints=a=b:NoSchedule", "--register-with-taints=c:NoExecute",
		"--eviction-hard=memory.available<1Gi,pid.available=5%", "--manifest-url-header=A: b:c", "--manifest-url-header=A: d")
	c := o.config
	if *c.EventRecordQPS != 5 || fmt.Sprint(c.FeatureGates) != "map[A:true B:false C:true]" || len(c.RegisterWithTaints) != 2 || c.RegisterWithTaints[1].Key != "c" ||
		fmt.Sprint(c.EvictionHard) != "map[memory.available:1Gi pid.available:5%]" || fmt.Sprint(c.StaticPodURLHeader) != "map[A:[b:c d]]" {
		t.Errorf("configuration %+v", c)
	}
	for arg, want := range map[string]string{"--event-qps=0.5": "want a whole number", "--feature-gates=A=perhaps": "want name=true or name=false",
		"--register-with-taints=a=b": "want key=value:NoSchedule", "--eviction-hard=x": "as in memory.available<100Mi"} {
		if _, _, err := tryParse("linux", arg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", arg, err, want)
		}
	}
	o, _ = parse(t, "--api-servers=http://x", "--manifest-url-header=secret")
	if err := checkHeaders(o.config.StaticPodURLHeader); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("%v", err)
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
	good := write(t, dir, "good.yaml", header+"maxPods: 10\ncontainerLogMaxWorkers: 7\nauthentication: {webhook: {enabled: true}}\n")
	want := "Ignored containerLogMaxWorkers (good.yaml:4): it has no effect: Docker rotates the logs\n/good.yaml: good; fields that are set: 5\n"
	if got := run(good); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := run(write(t, dir, "promise.yaml", header+"cpuManagerPolicy: static\n")); got != "error: /promise.yaml:3: cpuManagerPolicy: static: want none: this kubelet pins no container to CPUs or NUMA nodes" {
		t.Errorf("got %q", got)
	}
	if got := run(write(t, dir, "bad.yaml", header+"maxPods: -3\n")); !strings.HasPrefix(got, "error: /bad.yaml:3: maxPods: --max-pods=-3") {
		t.Errorf("got %q", got)
	}
}

// TestResolvePath: on Windows, kubeadm and older scripts leave paths without their drive or with a wrong prefix.
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

// TestVolumeHealthGate: health of volumes is reported with upstream's feature gate alone, which is off.
func TestVolumeHealthGate(t *testing.T) {
	facts, err := host.Read()
	if err != nil {
		t.Fatal(err)
	}
	facts.OS = "linux"
	for gate, want := range map[string]bool{"": false, "--feature-gates=CSIVolumeHealth=true": true, "--feature-gates=CSIVolumeHealth=false": false, "--feature-gates=Other=true": false} {
		args := []string{"--api-servers=https://x"}
		if gate != "" {
			args = append(args, gate)
		}
		o, _, err := tryParse("linux", args...)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := o.settings(facts)
		if err != nil || cfg.VolumeHealth != want {
			t.Errorf("%q: %v, %v; want %v", gate, cfg.VolumeHealth, err, want)
		}
	}
}

// TestHyperVGate: an annotation chooses the isolation with upstream's old feature gate alone, by flag or by file, on Windows. Each part that
// decides by it has the same Platform.
func TestHyperVGate(t *testing.T) {
	file := write(t, t.TempDir(), "config.yaml", header+"featureGates: {HyperVContainer: true}\n")
	for _, c := range []struct {
		system, arg string
		want        bool
	}{
		{"windows", "--v=0", false}, {"windows", "--feature-gates=HyperVContainer=true", true}, {"windows", "--feature-gates=HyperVContainer=false", false},
		{"windows", "--config=" + file, true}, {"linux", "--feature-gates=HyperVContainer=true", false},
	} {
		o, _, err := tryParse(c.system, "--api-servers=https://x", c.arg)
		if err != nil {
			t.Fatal(err)
		}
		facts := host.Facts{OS: c.system, Hostname: "n", CPUs: 2, Memory: 4 << 30}
		if c.system == "windows" {
			facts.WindowsBuild = 20348
		}
		cfg, err := o.settings(facts)
		if err != nil {
			t.Fatal(err)
		}
		for part, platform := range map[string]pod.Platform{"kubelet": cfg.Platform, "engine": cfg.Engine.Platform, "resolver": cfg.Resolver.Platform, "pods": cfg.Pods.Platform} {
			if platform.HyperVContainer != c.want {
				t.Errorf("%s %s: %s has %t", c.system, c.arg, part, platform.HyperVContainer)
			}
		}
	}
}

// TestVolumePluginDir: drivers are in upstream's directory by default, and beside the file that names a relative one; a flag takes precedence.
func TestVolumePluginDir(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir, "config.yaml", header+"volumePluginDir: drivers\n")
	work, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	facts, err := host.Read()
	if err != nil {
		t.Fatal(err)
	}
	absolute, err := filepath.Abs(defaultVolumePluginDir())
	if err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		absolute:                      nil,
		filepath.Join(dir, "drivers"): {"--config=" + file},
		filepath.Join(work, "here"):   {"--config=" + file, "--volume-plugin-dir=here"},
		"":                            {"--volume-plugin-dir="},
	} {
		o, _, err := tryParse(runtime.GOOS, append(args, "--api-servers=http://127.0.0.1:1")...)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := o.settings(facts)
		if err != nil {
			t.Fatal(err)
		}
		if cfg.FlexDir != want {
			t.Errorf("%q: drivers in %q, want %q", args, cfg.FlexDir, want)
		}
	}
}
