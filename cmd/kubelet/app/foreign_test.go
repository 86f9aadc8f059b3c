package app

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/spf13/pflag"
	config "k8s.io/kubelet/config/v1beta1"

	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/daemon/daemontest"
	"github.com/winkube/winkube/pkg/host"
)

// TestUpstream: each flag and field of upstream's kubelet has one class, and the page says which. `go test -C hack/tools/kubernetes ./flags` compares the
// list of flags with upstream's code.
func TestUpstream(t *testing.T) {
	flags, err := os.ReadFile("testdata/upstream-flags.txt")
	if err != nil {
		t.Fatal(err)
	}
	o, fs := parse(t)
	got, err := daemon.Comparison{Program: "kubelet", Kind: configKind, Upstream: string(flags), Flags: fs, Foreign: foreign, Bindings: o.fields, FieldsOnly: fieldsOnly, Content: &config.KubeletConfiguration{}}.Page()
	if err != nil {
		t.Error(err)
	}
	daemontest.Page(t, "../../../docs/reference/upstream-kubelet.md", got, *update)
}

// TestPromises: a setting that promises what is not there is refused, on the command line and in a file, and names what would be right. Values that ask
// for what happens anyway are accepted.
func TestPromises(t *testing.T) {
	facts, err := host.Read()
	if err != nil {
		t.Fatal(err)
	}
	facts.OS, facts.Swap, facts.CgroupV2 = "linux", 1<<30, false
	for _, c := range []struct{ flag, field, want string }{
		{"--cpu-manager-policy=static", "cpuManagerPolicy: static", "want none"},
		{"--cpu-manager-policy=none", "cpuManagerPolicy: none", ""},
		{"--memory-manager-policy=Static", "memoryManagerPolicy: Static", "want None"},
		{"--topology-manager-policy=best-effort", "topologyManagerPolicy: best-effort", "want none"},
		{"--topology-manager-policy-options=a=true", "topologyManagerPolicyOptions: {a: \"true\"}", "want no options"},
		{"--reserved-cpus=0-1", "reservedSystemCPUs: 0-1", "want no value, and --system-reserved=cpu=..."},
		{"--reserved-memory=0:memory=1Gi", "reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}]", "want no value, and --system-reserved=memory=..."},
		{"--cpu-cfs-quota=false", "cpuCFSQuota: false", "want true, and pods without CPU limits"},
		{"--cpu-cfs-quota", "cpuCFSQuota: true", ""},
		{"--cpu-cfs-quota-period=10ms", "cpuCFSQuotaPeriod: 10ms", "want 100ms"},
		{"--runonce", "runOnce: true", "want false"},
		{"--log-json-split-stream", "logging: {options: {json: {splitStream: true}}}", "want false"},
		{"--log-text-info-buffer-size=64Ki", "logging: {options: {text: {infoBufferSize: 64Ki}}}", ""},
		{"", "memorySwap: {swapBehavior: LimitedSwap}", "want NoSwap, or no value"},
		{"", "memorySwap: {swapBehavior: NoSwap}", "want no value, or a host without swap"},
		{"", "memoryThrottlingFactor: 0.8", ""}, // without the feature gate MemoryQoS it means nothing to upstream either
		{"", "tracing: {endpoint: x, samplingRatePerMillion: 0}", "want no value"},
		{"", "singleProcessOOMKill: false", "want true, or no value"},
		{"", "userNamespaces: {idsPerPod: 131072}", "want no value"},
		{"", "crashLoopBackOff: {maxContainerRestartPeriod: 6m}", "6m0s: want 1s to 5m0s"},
		{"", "crashLoopBackOff: {maxContainerRestartPeriod: 1s}", ""},
		{"", "tlsCurvePreferences: [29, 23]", ""},
		{"", "tlsCurvePreferences: [7]", "tlsCurvePreferences: 7: want some of"},
		{"--max-open-files=-1", "maxOpenFiles: -1", "--max-open-files=-1: want at least 1"},
	} {
		check := func(what, place string, args ...string) {
			o, _, err := tryParse("linux", append(args, "--api-servers=https://x")...)
			if err == nil {
				_, err = o.settings(facts)
				err = o.file.Located(err)
			}
			switch {
			case c.want == "" && err != nil:
				t.Errorf("%s: %v", what, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), place)):
				t.Errorf("%s: %v, want %s and %s", what, err, place, c.want)
			}
		}
		if c.flag != "" {
			name, _, _ := strings.Cut(c.flag, "=")
			check(c.flag, name, c.flag)
		}
		name, _, _ := strings.Cut(c.field, ":")
		check(c.field, "config.yaml:3: "+name, "--config="+write(t, t.TempDir(), "config.yaml", header+c.field+"\n"))
	}
}

// TestNoSwap: a host keeps pods out of swap if it has none, or if pods have cgroups of version 2.
func TestNoSwap(t *testing.T) {
	facts, err := host.Read()
	if err != nil {
		t.Fatal(err)
	}
	facts.OS = "linux"
	for _, c := range []struct {
		swap   uint64
		v2     bool
		flags  string
		refuse bool
	}{
		{0, false, "", false}, {1 << 30, false, "", true}, {1 << 30, true, "", false}, {1 << 30, true, "--cgroups-per-qos=false --enforce-node-allocatable=none", true},
	} {
		facts.Swap, facts.CgroupV2 = c.swap, c.v2
		file := write(t, t.TempDir(), "config.yaml", header+"memorySwap: {swapBehavior: NoSwap}\n")
		o, _ := parse(t, append(strings.Fields(c.flags), "--api-servers=https://x", "--config="+file)...)
		_, err := o.settings(facts)
		if c.refuse != (err != nil && strings.Contains(err.Error(), "containers without a memory limit may use swap")) || !c.refuse && err != nil {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestSmallSettings: these settings of upstream have their effect.
func TestSmallSettings(t *testing.T) {
	facts, err := host.Read()
	if err != nil {
		t.Fatal(err)
	}
	facts.OS = "linux"
	file := write(t, t.TempDir(), "config.yaml", header+"enableServer: false\nserverTLSBootstrap: true\ncrashLoopBackOff: {maxContainerRestartPeriod: 20s}\ntlsCurvePreferences: [29, 4588]\ncontentType: application/json\n"+
		"enableContentionProfiling: true\nlogging: {vmodule: [{filePattern: a*, verbosity: 4}]}\n")
	o, fs := parse(t, "--api-servers=https://x", "--config="+file)
	t.Cleanup(func() { resetVModule(t, fs) })
	cfg, err := o.settings(facts)
	if err != nil {
		t.Fatal(err)
	}
	client, err := o.clientConfig()
	if err != nil {
		t.Fatal(err)
	}
	if !cfg.Server.Off || cfg.RotateServing || cfg.Pods.CrashBackOff.Seconds() != 20 || len(cfg.Server.TLS.Curves) != 2 || client.ContentType != "application/json" || !o.config.EnableContentionProfiling {
		t.Errorf("configuration %+v, client %+v", cfg, client)
	}
	if got := fs.Lookup("vmodule").Value.String(); got != "a*=4" {
		t.Errorf("--vmodule=%s", got)
	}
	if c, err := o.effective(fs); err != nil || len(c.Logging.VModule) != 1 || c.Logging.VModule[0].Verbosity != 4 {
		t.Errorf("%+v, %v", c.Logging, err)
	}
	if notes := o.notes(); len(notes) > 0 {
		t.Errorf("notes %q", notes)
	}
}

// TestProtectKernelDefaults: the setting compares the kernel's settings, on Linux alone, and the error has its place in the file.
func TestProtectKernelDefaults(t *testing.T) {
	file := write(t, t.TempDir(), "config.yaml", header+"protectKernelDefaults: true\n")
	o, _ := parse(t, "--api-servers=https://x", "--config="+file)
	sys := fstest.MapFS{}
	for path, value := range map[string]string{"vm/overcommit_memory": "0", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1", "kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000"} {
		sys[path] = &fstest.MapFile{Data: []byte(value + "\n")}
	}
	err := o.file.Located(o.checkKernel("linux", sys))
	if err == nil || !strings.Contains(err.Error(), "config.yaml:3: protectKernelDefaults: --protect-kernel-defaults=true: the kernel has vm.overcommit_memory=0, want 1; write") {
		t.Error(err)
	}
	sys["vm/overcommit_memory"].Data = []byte("1\n")
	if err := o.checkKernel("linux", sys); err != nil {
		t.Error(err)
	}
	if err := o.checkKernel("windows", fstest.MapFS{}); err != nil {
		t.Error(err)
	}
	if o, _ := parse(t, "--api-servers=https://x"); o.checkKernel("linux", fstest.MapFS{}) != nil {
		t.Error("it is compared by default")
	}
}

// resetVModule clears klog's setting, which all flag sets share.
func resetVModule(t *testing.T, fs *pflag.FlagSet) {
	t.Helper()
	if err := fs.Lookup("vmodule").Value.Set(""); err != nil {
		t.Error(err)
	}
}

// upstreamDefaults are the defaults of upstream's settings that this kubelet does not have, as pkg/kubelet/apis/config/v1beta1/defaults.go of 1.36 has
// them. Tools that read /configz write them into files.
const upstreamDefaults = header + `cgroupDriver: cgroupfs
configMapAndSecretChangeDetectionStrategy: Watch
containerLogMaxWorkers: 1
containerLogMonitorInterval: 10s
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cpuCFSQuota: true
cpuCFSQuotaPeriod: 100ms
cpuManagerPolicy: none
cpuManagerReconcilePeriod: 10s
crashLoopBackOff: {maxContainerRestartPeriod: 5m0s}
enableControllerAttachDetach: true
failCgroupV1: true
failSwapOn: true
hairpinMode: promiscuous-bridge
iptablesDropBit: 15
iptablesMasqueradeBit: 14
localStorageCapacityIsolation: true
logging: {options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}}
makeIPTablesUtilChains: true
memoryManagerPolicy: None
memoryReservationPolicy: None
memoryThrottlingFactor: 0.9
topologyManagerPolicy: none
topologyManagerScope: container
volumeStatsAggPeriod: 1m0s
`

// TestUpstreamDefaults: a file with upstream's defaults is accepted. Only those that mean the opposite of what happens are noted.
func TestUpstreamDefaults(t *testing.T) {
	facts, err := host.Read()
	if err != nil {
		t.Fatal(err)
	}
	facts.OS = "linux"
	o, _ := parse(t, "--api-servers=https://x", "--config="+write(t, t.TempDir(), "config.yaml", upstreamDefaults))
	if _, err := o.settings(facts); err != nil {
		t.Error(o.file.Located(err))
	}
	want := "Ignored failCgroupV1 (config.yaml:14): it has no effect: the kubelet starts on hosts with cgroup v1\nIgnored failSwapOn (config.yaml:15): it has no effect: the kubelet starts on hosts with swap"
	if got := strings.Join(o.notes(), "\n"); got != want {
		t.Errorf("notes %s\nwant %s", got, want)
	}
}
