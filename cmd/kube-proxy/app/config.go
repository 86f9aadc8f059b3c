package app

import (
	"fmt"
	"os"
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

// bindings are the fields of the file that act, and the flags that mean the same.
var bindings = []daemon.Binding{
	{Path: "clientConnection.kubeconfig", Flag: "kubeconfig"},
	{Path: "clientConnection.contentType", Flag: "kube-api-content-type"},
	{Path: "clientConnection.qps", Flag: "kube-api-qps"},
	{Path: "clientConnection.burst", Flag: "kube-api-burst"},
	{Path: "hostnameOverride", Flag: "hostname-override"},
	{Path: "bindAddress", Flag: "bind-address"},
	{Path: "healthzBindAddress", Flag: "healthz-bind-address"},
	{Path: "metricsBindAddress", Flag: "metrics-bind-address"},
	{Path: "enableProfiling", Flag: "profiling"},
	{Path: "mode", Flag: "proxy-mode"},
	{Path: "iptables.syncPeriod", Flag: "iptables-sync-period"},
	{Path: "winkernel.networkName", Flag: "network-name"},
	{Path: "winkernel.sourceVip", Flag: "source-vip"},
	{Path: "winkernel.enableDSR", Flag: "enable-dsr"},
	{Path: "clusterCIDR", Flag: "cluster-cidr"},
	{Path: "nodePortAddresses", Flag: "nodeport-addresses"},
	{Path: "conntrack.udpStreamTimeout", Flag: "udp-timeout"},
	{Path: "configSyncPeriod", Flag: "config-sync-period"},
	{Path: "featureGates", Flag: "feature-gates"},
	{Path: "logging.format", Flag: "logging-format"},
	{Path: "logging.flushFrequency", Flag: "log-flush-frequency"},
	{Path: "logging.verbosity", Flag: "v"},
	{Path: "windowsRunAsService", Flag: "windows-service"},
}

// fileConfig is the file that was given and where it has what; the zero value is no file.
type fileConfig struct {
	daemon.ConfigFile
	content configFile
}

// readConfig takes what --config names. A flag that was given wins over the file; an empty value in the file is none, as upstream has it.
func (o *options) readConfig(fs *pflag.FlagSet) error {
	if o.configPath == "" {
		return nil
	}
	f := fileConfig{}
	if err := f.Read(o.configPath, &f.content); err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	if c := f.content; c.APIVersion != configVersion || c.Kind != configKind {
		return fmt.Errorf("--config=%s: it is %q %q: want apiVersion: %s and kind: %s", o.configPath, c.APIVersion, c.Kind, configVersion, configKind)
	}
	o.file = f
	return o.file.Apply(fs, bindings, &o.file.content)
}

// unused names the fields of the file that are set and change nothing here.
func (f *fileConfig) unused() []string {
	var out []string
	for _, field := range f.Unused(bindings) {
		out = append(out, fmt.Sprintf("Ignored %s: this proxy has nothing that it could change", field))
	}
	return out
}

// effective is the configuration in use: the file, over it the values of the flags.
func (o *options) effective(fs *pflag.FlagSet) (configFile, error) {
	c := o.file.content
	c.APIVersion, c.Kind = configVersion, configKind
	return c, o.file.Effective(fs, bindings, &c)
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
