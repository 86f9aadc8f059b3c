package app

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	logs "k8s.io/component-base/logs/api/v1"
	config "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/winkube/winkube/pkg/daemon"
)

const (
	configVersion = "kubeproxy.config.k8s.io/v1alpha1"
	configKind    = "KubeProxyConfiguration"
)

// bindings map fields of the file that have an effect to the flags with the same meaning.
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
	{Path: "conntrack.maxPerCore", Flag: "conntrack-max-per-core"},
	{Path: "conntrack.min", Flag: "conntrack-min"},
	{Path: "conntrack.udpStreamTimeout", Flag: "udp-timeout"},
	{Path: "configSyncPeriod", Flag: "config-sync-period"},
	{Path: "featureGates", Flag: "feature-gates"},
	{Path: "logging.format", Flag: "logging-format"},
	{Path: "logging.flushFrequency", Flag: "log-flush-frequency"},
	{Path: "logging.verbosity", Flag: "v"},
	{Path: "logging.vmodule", Flag: "vmodule"},
	{Path: "windowsRunAsService", Flag: "windows-service"},
}

// setDefaults sets unset fields to their defaults. As in upstream, an empty value in a file counts as unset.
func setDefaults(c *config.KubeProxyConfiguration) {
	fill(&c.ClientConnection.QPS, 5)
	fill(&c.ClientConnection.Burst, 10)
	fill(&c.ClientConnection.ContentType, runtime.ContentTypeProtobuf)
	fill(&c.BindAddress, "0.0.0.0")
	fill(&c.HealthzBindAddress, defaultHealthz)
	fill(&c.MetricsBindAddress, defaultMetrics)
	fill(&c.ConfigSyncPeriod.Duration, 15*time.Minute)
	fill(&c.IPTables.SyncPeriod.Duration, 30*time.Second)
	fill(&c.Conntrack.UDPStreamTimeout.Duration, 2*time.Minute)
	if c.Conntrack.MaxPerCore == nil {
		c.Conntrack.MaxPerCore = new(int32(32 << 10))
	}
	if c.Conntrack.Min == nil {
		c.Conntrack.Min = new(int32(128 << 10))
	}
}

// assign sets a field whose type is a number type of another module.
func assign[T ~uint32](field *T, value uint64) { *field = T(value) }

// fill sets an unset field to its default.
func fill[T comparable](field *T, value T) { *field = cmp.Or(*field, value) }

// parse parses a command line and the file of its --config. A flag overrides the file. If the file is unusable, it
// returns the options and flags of the command line with the error; if the command line is, no flags.
func parse(args []string) (*options, *pflag.FlagSet, error) {
	o := &options{}
	fs, err := o.parse(args, os.Stderr)
	if err != nil || o.configPath == "" {
		return o, fs, err
	}
	filled := &options{}
	if err := filled.readConfig(o.configPath); err != nil {
		return o, fs, err
	}
	flags, err := filled.parse(args, io.Discard)
	if err != nil {
		return o, fs, err
	}
	filled.file.Follow(flags, bindings)
	if err := filled.setProcessFlags(flags); err != nil {
		return o, fs, err
	}
	return filled, flags, nil
}

// parse sets unset fields to their defaults and parses args over them; out receives the notes about flags without
// effect.
func (o *options) parse(args []string, out io.Writer) (*pflag.FlagSet, error) {
	setDefaults(&o.config)
	fs := pflag.NewFlagSet("proxy", pflag.ContinueOnError)
	fs.SetOutput(out)
	o.addFlags(fs)
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	return fs, nil
}

// readConfig reads the file at path into o.config.
func (o *options) readConfig(path string) error {
	if err := o.file.Read(path, &o.config); err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	if c := o.config; c.APIVersion != configVersion || c.Kind != configKind {
		return fmt.Errorf("--config=%s: it is %q %q: want apiVersion: %s and kind: %s", path, c.APIVersion, c.Kind, configVersion, configKind)
	}
	return nil
}

// setProcessFlags sets the flags of package daemon to the values of the file.
func (o *options) setProcessFlags(fs *pflag.FlagSet) error {
	logging := o.config.Logging
	for flag, text := range map[string]string{"log-flush-frequency": logging.FlushFrequency.Duration.Duration.String(), "logging-format": logging.Format,
		"v": strconv.Itoa(int(logging.Verbosity)), "vmodule": logs.VModuleConfigurationPflag(&logging.VModule).String(), "windows-service": strconv.FormatBool(o.config.WindowsRunAsService)} {
		if !o.file.Sets(flag) {
			continue
		}
		if err := fs.Lookup(flag).Value.Set(text); err != nil { // not fs.Set, because the flag is not on the command line
			return fmt.Errorf("--config: --%s=%s: %w", flag, text, err)
		}
	}
	return nil
}

// effective returns the configuration in use.
func (o *options) effective(fs *pflag.FlagSet) (*config.KubeProxyConfiguration, error) {
	c := o.config.DeepCopy()
	c.APIVersion, c.Kind = configVersion, configKind
	every, err := fs.GetDuration("log-flush-frequency")
	if err != nil {
		return nil, err
	}
	level, err := strconv.ParseUint(fs.Lookup("v").Value.String(), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("--v: %w", err)
	}
	c.Logging.FlushFrequency.Duration.Duration, c.Logging.FlushFrequency.SerializeAsString = every, true
	assign(&c.Logging.Verbosity, level)
	c.Logging.Format = fs.Lookup("logging-format").Value.String()
	c.Logging.VModule = nil
	if err := logs.VModuleConfigurationPflag(&c.Logging.VModule).Set(fs.Lookup("vmodule").Value.String()); err != nil {
		return nil, fmt.Errorf("--vmodule: %w", err)
	}
	c.WindowsRunAsService = daemon.AsService(fs)
	return c, nil
}

// writeConfig writes the configuration in use to the file of --write-config-to.
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
