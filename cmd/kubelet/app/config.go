package app

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	slashpath "path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	config "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/kubelet"
)

const (
	configVersion = "kubelet.config.k8s.io/v1beta1"
	configKind    = "KubeletConfiguration"
)

// bindings are the fields of KubeletConfiguration (kubelet.config.k8s.io/v1beta1) that act, and the flags that mean the same.
var bindings = []daemon.Binding{
	{Path: "address", Flag: "address"},
	{Path: "allowedUnsafeSysctls", Flag: "allowed-unsafe-sysctls"},
	{Path: "authentication.anonymous.enabled", Flag: "anonymous-auth"},
	{Path: "authentication.webhook.cacheTTL", Flag: "authentication-token-webhook-cache-ttl"},
	{Path: "authentication.webhook.enabled", Flag: "authentication-token-webhook"},
	{Path: "authentication.x509.clientCAFile", Flag: "client-ca-file"},
	{Path: "authorization.mode", Flag: "authorization-mode"},
	{Path: "authorization.webhook.cacheAuthorizedTTL", Flag: "authorization-webhook-cache-authorized-ttl"},
	{Path: "authorization.webhook.cacheUnauthorizedTTL", Flag: "authorization-webhook-cache-unauthorized-ttl"},
	{Path: "cgroupRoot", Flag: "cgroup-root"},
	{Path: "cgroupsPerQOS", Flag: "cgroups-per-qos"},
	{Path: "clusterDNS", Flag: "cluster-dns"},
	{Path: "clusterDomain", Flag: "cluster-domain"},
	{Path: "containerLogMaxFiles", Flag: "container-log-max-files"},
	{Path: "containerLogMaxSize", Flag: "container-log-max-size"},
	{Path: "enableDebuggingHandlers", Flag: "enable-debugging-handlers"},
	{Path: "enableProfilingHandler", Flag: "profiling"},
	{Path: "enforceNodeAllocatable", Flag: "enforce-node-allocatable"},
	{Path: "eventBurst", Flag: "event-burst"},
	{Path: "eventRecordQPS", Flag: "event-qps"},
	{Path: "evictionHard", Flag: "eviction-hard"},
	{Path: "evictionMaxPodGracePeriod", Flag: "eviction-max-pod-grace-period"},
	{Path: "evictionMinimumReclaim", Flag: "eviction-minimum-reclaim"},
	{Path: "evictionPressureTransitionPeriod", Flag: "eviction-pressure-transition-period"},
	{Path: "evictionSoft", Flag: "eviction-soft"},
	{Path: "evictionSoftGracePeriod", Flag: "eviction-soft-grace-period"},
	{Path: "featureGates", Flag: "feature-gates"},
	{Path: "fileCheckFrequency", Flag: "file-check-frequency"},
	{Path: "healthzBindAddress", Flag: "healthz-bind-address"},
	{Path: "healthzPort", Flag: "healthz-port"},
	{Path: "httpCheckFrequency", Flag: "http-check-frequency"},
	{Path: "imageGCHighThresholdPercent", Flag: "image-gc-high-threshold"},
	{Path: "imageGCLowThresholdPercent", Flag: "image-gc-low-threshold"},
	{Path: "imageMaximumGCAge", Flag: "maximum-image-ttl-duration"},
	{Path: "imageMinimumGCAge", Flag: "minimum-image-ttl-duration"},
	{Path: "imagePullCredentialsVerificationPolicy", Flag: "image-pull-credentials-verification-policy"},
	{Path: "kubeAPIBurst", Flag: "kube-api-burst"},
	{Path: "kubeAPIQPS", Flag: "kube-api-qps"},
	{Path: "kubeReserved", Flag: "kube-reserved"},
	{Path: "logging.flushFrequency", Flag: "log-flush-frequency"},
	{Path: "logging.format", Flag: "logging-format"},
	{Path: "logging.verbosity", Flag: "v"},
	{Path: "maxParallelImagePulls", Flag: "max-parallel-image-pulls"},
	{Path: "maxPods", Flag: "max-pods"},
	{Path: "nodeStatusMaxImages", Flag: "node-status-max-images"},
	{Path: "nodeStatusReportFrequency", Flag: "node-status-report-frequency"},
	{Path: "nodeStatusUpdateFrequency", Flag: "node-status-update-frequency"},
	{Path: "oomScoreAdj", Flag: "oom-score-adj"},
	{Path: "podCIDR", Flag: "pod-cidr"},
	{Path: "podLogsDir", Flag: "pod-logs-dir"},
	{Path: "podPidsLimit", Flag: "pod-max-pids"},
	{Path: "podsPerCore", Flag: "pods-per-core"},
	{Path: "port", Flag: "port"},
	{Path: "preloadedImagesVerificationAllowlist", Flag: "preloaded-images-verification-allowlist"},
	{Path: "providerID", Flag: "provider-id"},
	{Path: "readOnlyPort", Flag: "read-only-port"},
	{Path: "registerNode", Flag: "register-node"},
	{Path: "registryBurst", Flag: "registry-burst"},
	{Path: "registryPullQPS", Flag: "registry-qps"},
	{Path: "resolvConf", Flag: "resolv-conf"},
	{Path: "rotateCertificates", Flag: "rotate-certificates"},
	{Path: "runtimeRequestTimeout", Flag: "runtime-request-timeout"},
	{Path: "seccompDefault", Flag: "seccomp-default"},
	{Path: "serializeImagePulls", Flag: "serialize-image-pulls"},
	{Path: "serverTLSBootstrap", Flag: "rotate-server-certificates"},
	{Path: "shutdownGracePeriod", Flag: "shutdown-grace-period"},
	{Path: "shutdownGracePeriodCriticalPods", Flag: "shutdown-grace-period-critical-pods"},
	{Path: "staticPodPath", Flag: "pod-manifest-path"},
	{Path: "staticPodURL", Flag: "manifest-url"},
	{Path: "staticPodURLHeader", Flag: "manifest-url-header"},
	{Path: "streamingConnectionIdleTimeout", Flag: "streaming-connection-idle-timeout"},
	{Path: "syncFrequency", Flag: "sync-frequency"},
	{Path: "systemReserved", Flag: "system-reserved"},
	{Path: "tlsCertFile", Flag: "tls-cert-file"},
	{Path: "tlsCipherSuites", Flag: "tls-cipher-suites"},
	{Path: "tlsMinVersion", Flag: "tls-min-version"},
	{Path: "tlsPrivateKeyFile", Flag: "tls-private-key-file"},
}

// fulfilled are fields without a flag of which nothing need be said: the first seven act, and the others ask for what is so in any case.
var fulfilled = []string{"registerWithTaints", "shutdownGracePeriodByPodPriority", "nodeLeaseDurationSeconds", "mergeDefaultEvictionSettings", "enableSystemLogHandler", "enableSystemLogQuery", "enableDebugFlagsHandler", "containerRuntimeEndpoint", "imageServiceEndpoint", "cgroupDriver", "enableServer", "failSwapOn",
	"failCgroupV1", "enableControllerAttachDetach", "logging.options.json.infoBufferSize", "logging.options.text.infoBufferSize"}

// fileConfig is what --config and --config-dir say; the zero value is no file.
type fileConfig struct {
	daemon.ConfigFile
	content config.KubeletConfiguration
}

// read takes a file and the drop-ins of a directory: its *.conf in the order of their names, each over those before it (KEP-3983).
func (f *fileConfig) read(file, dir, system string) error {
	files := []string{}
	if file != "" {
		files = append(files, file)
	}
	if dir != "" {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() && filepath.Ext(path) == ".conf" {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("--config-dir: %w", err)
		}
	}
	for _, name := range files {
		f.content.APIVersion, f.content.Kind = "", ""
		if err := f.Read(name, &f.content); err != nil {
			return fmt.Errorf("--config: %w", err)
		}
		if c := f.content; c.APIVersion != configVersion || c.Kind != configKind {
			return fmt.Errorf("--config: %s: it is %q %q: want apiVersion: %s and kind: %s", name, c.APIVersion, c.Kind, configVersion, configKind)
		}
	}
	exists := func(path string) bool { _, err := os.Stat(path); return err == nil }
	for field, text := range f.texts() {
		if place, ok := f.Places[field]; ok {
			*text = resolvePath(*text, place.File, system, exists)
		}
	}
	return nil
}

// texts are the fields that hold paths. A relative one is meant from the directory of the file that has it, as upstream takes it.
func (f *fileConfig) texts() map[string]*string {
	c := &f.content
	texts := map[string]*string{"authentication.x509.clientCAFile": &c.Authentication.X509.ClientCAFile, "staticPodPath": &c.StaticPodPath,
		"tlsCertFile": &c.TLSCertFile, "tlsPrivateKeyFile": &c.TLSPrivateKeyFile, "podLogsDir": &c.PodLogsDir}
	if c.ResolverConfig != nil {
		texts["resolvConf"] = c.ResolverConfig
	}
	return texts
}

// readFiles gives flags the values of --kubeadm-flags, and then of --config and --config-dir.
func (o *options) readFiles(fs *pflag.FlagSet, system string) error {
	if err := readFlagsFile(fs, o.kubeadmFlags); err != nil {
		return err
	}
	return o.readConfig(fs, system)
}

// readConfig takes what --config and --config-dir name. A flag that was given wins over the files.
func (o *options) readConfig(fs *pflag.FlagSet, system string) error {
	if o.configPath == "" && o.configDir == "" {
		return nil
	}
	f := fileConfig{}
	if err := f.read(o.configPath, o.configDir, system); err != nil {
		return err
	}
	o.file = f
	if taints := fs.Lookup("register-with-taints"); !taints.Changed {
		for _, taint := range f.content.RegisterWithTaints {
			if err := fs.Set("register-with-taints", taint.ToString()); err != nil {
				return fmt.Errorf("registerWithTaints: %w", err)
			}
		}
	}
	o.shutdown.ByPriority = nil
	for _, class := range f.content.ShutdownGracePeriodByPodPriority {
		o.shutdown.ByPriority = append(o.shutdown.ByPriority, kubelet.ShutdownClass{Priority: class.Priority, Grace: time.Duration(class.ShutdownGracePeriodSeconds) * time.Second})
	}
	return o.file.Apply(fs, bindings, &o.file.content)
}

// notes says of each field of the files that changes nothing here that it does not.
func (f *fileConfig) notes() []string {
	var out []string
	for _, field := range f.Unused(bindings, fulfilled...) {
		out = append(out, fmt.Sprintf("Ignored %s: this kubelet has nothing that it could change", field))
	}
	return out
}

// effective is the configuration in use: the files, over them the values of the flags. It holds no secret but the headers for static pods'
// manifests, which are left out.
func (o *options) effective(fs *pflag.FlagSet) (config.KubeletConfiguration, error) {
	c := o.file.content
	c.APIVersion, c.Kind = configVersion, configKind
	own := slices.DeleteFunc(slices.Clone(bindings), func(b daemon.Binding) bool { return b.Path == "staticPodURLHeader" })
	if err := o.file.Effective(fs, own, &c); err != nil {
		return c, err
	}
	var err error
	c.StaticPodURLHeader = nil
	c.RegisterWithTaints, err = parseTaints(o.taints)
	return c, err
}

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

// resolvePath makes a path that stands in the file at from absolute. On Windows a path without a drive is on the drive of that file, doubled
// backslashes are one, and "C:\var\lib\kubelet\etc\kubernetes\pki\ca.crt", which older tools made of "/etc/kubernetes/pki/ca.crt" by taking it
// for relative, is what it should have been unless there is such a file.
func resolvePath(path, from, system string, exists func(string) bool) string {
	if path == "" {
		return ""
	}
	if system != "windows" {
		if strings.HasPrefix(path, "/") {
			return path
		}
		return slashpath.Join(slashpath.Dir(from), path)
	}
	if path == "Host" { // resolvConf: the host's own settings
		return path
	}
	path, from = backslashes(path), backslashes(from)
	drive := "C:"
	if hasDrive(from) {
		drive = from[:2]
	}
	switch {
	case hasDrive(path):
	case strings.HasPrefix(path, `\\`): // a share or a pipe
		return path
	case strings.HasPrefix(path, `\`):
		path = drive + path
	default:
		path = from[:strings.LastIndex(from, `\`)+1] + path
	}
	if at := strings.Index(path, `\etc\kubernetes\`); at > 2 && !exists(path) {
		return path[:2] + path[at:]
	}
	return path
}

func hasDrive(path string) bool { return len(path) > 1 && path[1] == ':' }

// backslashes is a path as Windows writes it. Two at the beginning stay.
func backslashes(path string) string {
	path = strings.ReplaceAll(path, "/", `\`)
	begin := ""
	if strings.HasPrefix(path, `\\`) {
		begin = `\`
	}
	for strings.Contains(path, `\\`) {
		path = strings.ReplaceAll(path, `\\`, `\`)
	}
	return begin + path
}

// readFlagsFile takes the flags of a file as kubeadm writes it: KUBELET_KUBEADM_ARGS="--a=b --c=d". Those of the command line win. A file
// that is not there yet is no error: kubeadm has not run.
func readFlagsFile(set *pflag.FlagSet, path string) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || path == "" {
		return nil
	}
	if err != nil {
		return fmt.Errorf("--kubeadm-flags: %w", err)
	}
	args, err := flagsOf(string(data))
	if err != nil {
		return fmt.Errorf("--kubeadm-flags=%s: %w", path, err)
	}
	given := map[string]bool{}
	set.Visit(func(f *pflag.Flag) { given[f.Name] = true })
	if err := set.ParseAll(args, func(f *pflag.Flag, value string) error {
		if given[f.Name] {
			return nil
		}
		return set.Set(f.Name, value)
	}); err != nil {
		return fmt.Errorf("--kubeadm-flags=%s: %w", path, err)
	}
	return nil
}

// flagsOf reads the assignment of KUBELET_KUBEADM_ARGS.
func flagsOf(text string) ([]string, error) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		value, ok := strings.CutPrefix(line, "KUBELET_KUBEADM_ARGS=")
		if !ok {
			return nil, fmt.Errorf("%q: want KUBELET_KUBEADM_ARGS=\"--name=value ...\"", line)
		}
		return strings.Fields(strings.Trim(value, `"`)), nil
	}
	return nil, nil
}

// newConfigCommand makes `kubelet config check`.
func newConfigCommand(out io.Writer) *cobra.Command {
	parent := &cobra.Command{Use: "config", Short: "Explains the kubelet's configuration file", Args: cobra.NoArgs}
	dir := ""
	check := &cobra.Command{
		Use:   "check FILE",
		Short: "Says what is wrong with a configuration file, and which of its fields change nothing here",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			o, set, err := parseFlags(nil)
			if err != nil {
				return err
			}
			return o.check(set, args[0], dir, out)
		},
	}
	check.Flags().StringVar(&dir, "config-dir", "", "`directory` of drop-ins, as of the kubelet")
	parent.AddCommand(check)
	return parent
}

func (o *options) check(set *pflag.FlagSet, file, dir string, out io.Writer) error {
	facts, err := host.Read()
	if err != nil {
		return err
	}
	o.configPath, o.configDir = file, dir
	if err := o.readConfig(set, facts.OS); err != nil {
		return err
	}
	o.apiServers = "https://kubernetes.invalid" // which one it is stands in no configuration file
	if _, err := o.settings(facts); err != nil {
		return o.file.Located(err)
	}
	for _, note := range o.file.notes() {
		fmt.Fprintln(out, note)
	}
	fmt.Fprintf(out, "%s: good; fields that are set: %d\n", file, len(o.file.Places))
	return nil
}
