package app

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/winkube/winkube/pkg/daemon"
)

const (
	configVersion = "kubeproxy.config.k8s.io/v1alpha1"
	configKind    = "KubeProxyConfiguration"
)

// configFile is KubeProxyConfiguration (kubeproxy.config.k8s.io/v1alpha1) of Kubernetes 1.36, every field of it, so that a cluster's file
// is taken as it is and a word that is none of its fields is found. What its fields mean here is in bindings; the others are noted.
type configFile struct {
	metav1.TypeMeta    `json:",inline"`
	FeatureGates       map[string]bool  `json:"featureGates,omitempty"`
	ClientConnection   clientConnection `json:"clientConnection"`
	Logging            logging          `json:"logging,omitzero"`
	HostnameOverride   string           `json:"hostnameOverride"`
	BindAddress        string           `json:"bindAddress"`
	HealthzBindAddress string           `json:"healthzBindAddress"`
	MetricsBindAddress string           `json:"metricsBindAddress"`
	HardFail           bool             `json:"bindAddressHardFail"`
	EnableProfiling    bool             `json:"enableProfiling"`
	HiddenMetrics      string           `json:"showHiddenMetricsForVersion"`
	Mode               string           `json:"mode"`
	IPTables           packetRules      `json:"iptables"`
	IPVS               ipvs             `json:"ipvs"`
	NFTables           packetRules      `json:"nftables"`
	Winkernel          winkernel        `json:"winkernel"`
	DetectLocalMode    string           `json:"detectLocalMode"`
	DetectLocal        struct {
		BridgeInterface     string `json:"bridgeInterface"`
		InterfaceNamePrefix string `json:"interfaceNamePrefix"`
	} `json:"detectLocal"`
	ClusterCIDR         string          `json:"clusterCIDR"`
	NodePortAddresses   []string        `json:"nodePortAddresses"`
	OOMScoreAdj         *int32          `json:"oomScoreAdj"`
	Conntrack           conntrack       `json:"conntrack"`
	ConfigSyncPeriod    metav1.Duration `json:"configSyncPeriod"`
	PortRange           string          `json:"portRange"`
	WindowsRunAsService bool            `json:"windowsRunAsService,omitempty"`
}

type clientConnection struct {
	Kubeconfig         string  `json:"kubeconfig"`
	AcceptContentTypes string  `json:"acceptContentTypes"`
	ContentType        string  `json:"contentType"`
	QPS                float32 `json:"qps"`
	Burst              int32   `json:"burst"`
}

type logging struct {
	Format         string         `json:"format,omitempty"`
	FlushFrequency flushFrequency `json:"flushFrequency"`
	Verbosity      int32          `json:"verbosity"`
	VModule        []struct {
		FilePattern string `json:"filePattern"`
		Verbosity   int32  `json:"verbosity"`
	} `json:"vmodule,omitempty"`
	Options struct {
		Text logOutput `json:"text,omitzero"`
		JSON logOutput `json:"json,omitzero"`
	} `json:"options,omitzero"`
}

type logOutput struct {
	SplitStream    bool       `json:"splitStream,omitempty"`
	InfoBufferSize bufferSize `json:"infoBufferSize,omitempty"`
}

// bufferSize is a quantity, of which "0" is as good as none.
type bufferSize string

func (b *bufferSize) UnmarshalJSON(data []byte) error {
	if text := strings.Trim(string(data), `"`); text != "0" {
		*b = bufferSize(text)
	}
	return nil
}

// flushFrequency is a duration that older files have as a number of nanoseconds.
type flushFrequency struct{ metav1.Duration }

func (f *flushFrequency) UnmarshalJSON(data []byte) error {
	if n, err := strconv.ParseInt(string(data), 10, 64); err == nil {
		f.Duration = metav1.Duration{Duration: time.Duration(n)}
		return nil
	}
	return f.Duration.UnmarshalJSON(data)
}

// packetRules are the sections of the modes iptables and nftables, of which the latter has no localhostNodePorts.
type packetRules struct {
	MasqueradeBit      *int32          `json:"masqueradeBit"`
	MasqueradeAll      bool            `json:"masqueradeAll"`
	LocalhostNodePorts *bool           `json:"localhostNodePorts,omitempty"`
	SyncPeriod         metav1.Duration `json:"syncPeriod"`
	MinSyncPeriod      metav1.Duration `json:"minSyncPeriod"`
}

type ipvs struct {
	SyncPeriod    metav1.Duration `json:"syncPeriod"`
	MinSyncPeriod metav1.Duration `json:"minSyncPeriod"`
	Scheduler     string          `json:"scheduler"`
	ExcludeCIDRs  []string        `json:"excludeCIDRs"`
	StrictARP     bool            `json:"strictARP"`
	TCPTimeout    metav1.Duration `json:"tcpTimeout"`
	TCPFinTimeout metav1.Duration `json:"tcpFinTimeout"`
	UDPTimeout    metav1.Duration `json:"udpTimeout"`
}

type winkernel struct {
	NetworkName           string `json:"networkName"`
	SourceVip             string `json:"sourceVip"`
	EnableDSR             bool   `json:"enableDSR"`
	RootHnsEndpointName   string `json:"rootHnsEndpointName"`
	ForwardHealthCheckVip bool   `json:"forwardHealthCheckVip"`
}

type conntrack struct {
	MaxPerCore            *int32           `json:"maxPerCore"`
	Min                   *int32           `json:"min"`
	TCPEstablishedTimeout *metav1.Duration `json:"tcpEstablishedTimeout"`
	TCPCloseWaitTimeout   *metav1.Duration `json:"tcpCloseWaitTimeout"`
	TCPBeLiberal          bool             `json:"tcpBeLiberal"`
	UDPTimeout            metav1.Duration  `json:"udpTimeout"`
	UDPStreamTimeout      metav1.Duration  `json:"udpStreamTimeout"`
}

// binding says that a field of the file and a flag mean the same.
type binding struct {
	path, flag string
	field      func(*configFile) any // pointer to the field
}

var bindings = []binding{
	{"clientConnection.kubeconfig", "kubeconfig", func(c *configFile) any { return &c.ClientConnection.Kubeconfig }},
	{"clientConnection.contentType", "kube-api-content-type", func(c *configFile) any { return &c.ClientConnection.ContentType }},
	{"clientConnection.qps", "kube-api-qps", func(c *configFile) any { return &c.ClientConnection.QPS }},
	{"clientConnection.burst", "kube-api-burst", func(c *configFile) any { return &c.ClientConnection.Burst }},
	{"hostnameOverride", "hostname-override", func(c *configFile) any { return &c.HostnameOverride }},
	{"bindAddress", "bind-address", func(c *configFile) any { return &c.BindAddress }},
	{"healthzBindAddress", "healthz-bind-address", func(c *configFile) any { return &c.HealthzBindAddress }},
	{"metricsBindAddress", "metrics-bind-address", func(c *configFile) any { return &c.MetricsBindAddress }},
	{"enableProfiling", "profiling", func(c *configFile) any { return &c.EnableProfiling }},
	{"mode", "proxy-mode", func(c *configFile) any { return &c.Mode }},
	{"iptables.syncPeriod", "iptables-sync-period", func(c *configFile) any { return &c.IPTables.SyncPeriod }},
	{"winkernel.networkName", "network-name", func(c *configFile) any { return &c.Winkernel.NetworkName }},
	{"winkernel.sourceVip", "source-vip", func(c *configFile) any { return &c.Winkernel.SourceVip }},
	{"winkernel.enableDSR", "enable-dsr", func(c *configFile) any { return &c.Winkernel.EnableDSR }},
	{"clusterCIDR", "cluster-cidr", func(c *configFile) any { return &c.ClusterCIDR }},
	{"nodePortAddresses", "nodeport-addresses", func(c *configFile) any { return &c.NodePortAddresses }},
	{"conntrack.udpStreamTimeout", "udp-timeout", func(c *configFile) any { return &c.Conntrack.UDPStreamTimeout }},
	{"configSyncPeriod", "config-sync-period", func(c *configFile) any { return &c.ConfigSyncPeriod }},
	{"featureGates", "feature-gates", func(c *configFile) any { return &c.FeatureGates }},
	{"logging.format", "logging-format", func(c *configFile) any { return &c.Logging.Format }},
	{"logging.flushFrequency", "log-flush-frequency", func(c *configFile) any { return &c.Logging.FlushFrequency.Duration }},
	{"logging.verbosity", "v", func(c *configFile) any { return &c.Logging.Verbosity }},
	{"windowsRunAsService", "windows-service", func(c *configFile) any { return &c.WindowsRunAsService }},
}

// fileConfig is the file that was given and where it has what; the zero value is no file.
type fileConfig struct {
	name    string
	data    []byte // as read
	lines   daemon.Lines
	content configFile
	from    map[string]binding // by flag: those whose value is the file's
}

// readConfig takes what --config names. A flag that was given wins over the file; an empty value in the file is none, as upstream has it.
func (o *options) readConfig(fs *pflag.FlagSet) error {
	if o.configPath == "" {
		return nil
	}
	data, err := os.ReadFile(o.configPath)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	f := fileConfig{name: o.configPath, data: data, from: map[string]binding{}}
	if f.lines, err = daemon.ReadConfig(data, &f.content); err != nil {
		return fmt.Errorf("--config=%s: %w", f.name, err)
	}
	if c := f.content; c.APIVersion != configVersion || c.Kind != configKind {
		return fmt.Errorf("--config=%s: it is %q %q: want apiVersion: %s and kind: %s", f.name, c.APIVersion, c.Kind, configVersion, configKind)
	}
	for _, b := range bindings {
		if f.lines[b.path] == 0 || fs.Lookup(b.flag) == nil || fs.Changed(b.flag) {
			continue
		}
		if err := fs.Set(b.flag, flagText(b.field(&f.content))); err != nil {
			return fmt.Errorf("%s:%d: %s: %w", f.name, f.lines[b.path], b.path, err)
		}
		f.from[b.flag] = b
	}
	o.file = f
	return nil
}

// located names the place in the file for an error about a flag whose value came from there.
func (f *fileConfig) located(err error) error {
	if err == nil {
		return nil
	}
	name, ok := strings.CutPrefix(err.Error(), "--")
	if end := strings.IndexAny(name, "=: "); ok && end > 0 {
		if b, ok := f.from[name[:end]]; ok {
			return fmt.Errorf("%s:%d: %s: %w", f.name, f.lines[b.path], b.path, err)
		}
	}
	return err
}

// unused names the fields of the file that are set and change nothing here.
func (f *fileConfig) unused() []string {
	var out []string
	for path, line := range f.lines {
		bound := slices.ContainsFunc(bindings, func(b binding) bool { return path == b.path || strings.HasPrefix(path, b.path+".") })
		if bound || path == "apiVersion" || path == "kind" || strings.HasSuffix(path, "]") || strings.Contains(path, "].") {
			continue
		}
		out = append(out, fmt.Sprintf("Ignored %s (%s:%d): this proxy has nothing that it could change", path, filepath.Base(f.name), line))
	}
	slices.Sort(out)
	return out
}

// effective is the configuration in use: the file, over it the values of the flags.
func (o *options) effective(fs *pflag.FlagSet) (configFile, error) {
	c := o.file.content
	c.APIVersion, c.Kind = configVersion, configKind
	for _, b := range bindings {
		if f := fs.Lookup(b.flag); f != nil {
			if err := setField(b.field(&c), f.Value); err != nil {
				return c, fmt.Errorf("cannot write --%s as %s: %w", b.flag, b.path, err)
			}
		}
	}
	return c, nil
}

// writeConfig writes the configuration in use to the file that --write-config-to names.
func (o *options) writeConfig(fs *pflag.FlagSet) error {
	c, err := o.effective(fs)
	if err != nil {
		return err
	}
	data, err := yaml.Marshal(c)
	if err != nil {
		return fmt.Errorf("cannot write the configuration: %w", err)
	}
	if err := os.WriteFile(o.writeConfigTo, data, 0o600); err != nil {
		return fmt.Errorf("--write-config-to: %w", err)
	}
	return nil
}

// flagText is a field's value as its flag takes it.
func flagText(field any) string {
	switch f := field.(type) {
	case *string:
		return *f
	case *bool:
		return strconv.FormatBool(*f)
	case *int32:
		return strconv.Itoa(int(*f))
	case *float32:
		return strconv.FormatFloat(float64(*f), 'g', -1, 32)
	case *metav1.Duration:
		return f.Duration.String()
	case *[]string:
		return strings.Join(*f, ",")
	case *map[string]bool:
		var parts []string
		for name, on := range *f {
			parts = append(parts, fmt.Sprintf("%s=%t", name, on))
		}
		slices.Sort(parts)
		return strings.Join(parts, ",")
	}
	panic(fmt.Sprintf("a binding has a field of type %T", field))
}

// setField sets a field to a flag's value.
func setField(field any, value pflag.Value) (err error) {
	switch f := field.(type) {
	case *string:
		*f = value.String()
	case *bool:
		*f, err = strconv.ParseBool(value.String())
	case *int32:
		var n int64
		n, err = strconv.ParseInt(value.String(), 10, 32)
		*f = int32(n)
	case *float32:
		var n float64
		n, err = strconv.ParseFloat(value.String(), 32)
		*f = float32(n)
	case *metav1.Duration:
		f.Duration, err = time.ParseDuration(value.String())
	case *[]string:
		*f = nil
		if list, ok := value.(pflag.SliceValue); ok && len(list.GetSlice()) > 0 {
			*f = list.GetSlice()
		}
	case *map[string]bool:
		*f, err = parseGates(value.String())
	}
	return err
}

// parseGates takes what a flag of the form name=true,... prints.
func parseGates(text string) (map[string]bool, error) {
	gates := map[string]bool{}
	for part := range strings.SplitSeq(strings.Trim(text, "[]"), ",") {
		if name, value, ok := strings.Cut(part, "="); ok {
			on, err := strconv.ParseBool(value)
			if err != nil {
				return nil, err
			}
			gates[name] = on
		}
	}
	return gates, nil
}
