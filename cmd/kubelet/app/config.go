package app

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	slashpath "path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	logs "k8s.io/component-base/logs/api/v1"
	config "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/winkube/winkube/pkg/host"
)

const (
	configVersion = "kubelet.config.k8s.io/v1beta1"
	configKind    = "KubeletConfiguration"
)

// fieldsOnly are fields that have an effect and no flag, with what they do.
var fieldsOnly = map[string]string{
	"shutdownGracePeriodByPodPriority":           "how long pods of each priority may take to end before the host shuts down",
	"nodeLeaseDurationSeconds":                   "how long the node's Lease is valid",
	"mergeDefaultEvictionSettings":               "signals that evictionHard does not name keep their default threshold",
	"enableSystemLogHandler":                     "serve /logs/",
	"enableSystemLogQuery":                       "serve queries of the host's logs",
	"enableDebugFlagsHandler":                    "serve /debug/flags/v",
	"crashLoopBackOff.maxContainerRestartPeriod": "longest delay before a crashing container starts again, 1 s to 300 s",
	"tlsCurvePreferences":                        "accepted key exchanges of TLS, by their IANA numbers",
}

// parse sets defaults for all fields, parses args, and adds the flags of --kubeadm-flags that args do not have.
func (o *options) parse(args []string) (*pflag.FlagSet, error) { return o.parseTo(args, os.Stderr) }

// parseTo is parse; out receives the notes about ignored flags.
func (o *options) parseTo(args []string, out io.Writer) (*pflag.FlagSet, error) {
	setDefaults(&o.config)
	fs := o.flagSet()
	fs.SetOutput(out)
	if err := fs.Parse(args); err != nil {
		return nil, err
	}
	if o.from.joined {
		for name, path := range kubeadmFiles(defaultRootDir(), defaultKubeadmDir()) {
			if f := fs.Lookup(name); !f.Changed {
				if err := f.Value.Set(path); err != nil { // not fs.Set: it would count as given on the command line
					return nil, err
				}
			}
		}
	}
	return fs, readFlagsFile(fs, o.from.kubeadm)
}

// kubeadmFiles are the flags for files that kubeadm join writes. Source: kubernetes cmd/kubeadm/app/constants/constants.go, whose directories have no
// drive; sig-windows-tools' StartKubelet.ps1 looks for them on the system drive.
func kubeadmFiles(kubelet, kubernetes string) map[string]string {
	return map[string]string{"config": filepath.Join(kubelet, "config.yaml"), "kubeadm-flags": filepath.Join(kubelet, "kubeadm-flags.env"),
		"kubeconfig": filepath.Join(kubernetes, "kubelet.conf"), "bootstrap-kubeconfig": filepath.Join(kubernetes, "bootstrap-kubelet.conf")}
}

// withFiles returns the options of the files in o.from overridden by args, or o and its flags if there are no files. system determines the meaning of
// paths in files.
func (o *options) withFiles(fs *pflag.FlagSet, args []string, system string) (*options, *pflag.FlagSet, error) {
	if o.from.config == "" && o.from.dir == "" {
		return o, fs, nil
	}
	out := &options{}
	if err := out.readFiles(o.from.config, o.from.dir, system); err != nil {
		return nil, nil, err
	}
	fs, err := out.parseTo(args, io.Discard)
	if err != nil {
		return nil, nil, err
	}
	out.file.Follow(fs, out.fields)
	return out, fs, out.setLoggingFlags(fs)
}

// readFiles decodes a file and the drop-ins of a directory into the configuration: its *.conf files in the order of their names, each overriding the
// previous ones (KEP-3983).
func (o *options) readFiles(file, dir, system string) error {
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
		o.config.APIVersion, o.config.Kind = "", ""
		if err := o.file.Read(name, &o.config); err != nil {
			return fmt.Errorf("--config: %w", err)
		}
		if c := o.config; c.APIVersion != configVersion || c.Kind != configKind {
			return fmt.Errorf("--config: %s: it is %q %q: want apiVersion: %s and kind: %s", name, c.APIVersion, c.Kind, configVersion, configKind)
		}
	}
	exists := func(path string) bool { _, err := os.Stat(path); return err == nil }
	for field, text := range pathsOf(&o.config) {
		if place, ok := o.file.Places[field]; ok {
			*text = resolvePath(*text, place.File, system, exists)
		}
	}
	return nil
}

// pathsOf are the fields that contain paths. A relative path starts at the directory of its file, as upstream does.
func pathsOf(c *config.KubeletConfiguration) map[string]*string {
	paths := map[string]*string{"authentication.x509.clientCAFile": &c.Authentication.X509.ClientCAFile, "staticPodPath": &c.StaticPodPath,
		"tlsCertFile": &c.TLSCertFile, "tlsPrivateKeyFile": &c.TLSPrivateKeyFile, "podLogsDir": &c.PodLogsDir, "volumePluginDir": &c.VolumePluginDir}
	if c.ResolverConfig != nil {
		paths["resolvConf"] = c.ResolverConfig
	}
	return paths
}

// setLoggingFlags sets the flags of package daemon to the files' logging settings.
func (o *options) setLoggingFlags(fs *pflag.FlagSet) error {
	logging := o.config.Logging
	for flag, text := range map[string]string{"log-flush-frequency": logging.FlushFrequency.Duration.Duration.String(), "logging-format": logging.Format,
		"v": strconv.Itoa(int(logging.Verbosity)), "vmodule": logs.VModuleConfigurationPflag(&logging.VModule).String()} {
		if !o.file.Sets(flag) {
			continue
		}
		if err := fs.Lookup(flag).Value.Set(text); err != nil { // not fs.Set: it would count as given on the command line
			return fmt.Errorf("logging: %s: %w", flag, err)
		}
	}
	return nil
}

// notes lists the fields of the files that have no effect here.
func (o *options) notes() []string {
	return o.file.Ignored(foreign, &o.config, o.fields, slices.Collect(maps.Keys(fieldsOnly))...)
}

// effective is the current configuration. It omits the only secrets, the headers for static pods' manifests.
func (o *options) effective(fs *pflag.FlagSet) (config.KubeletConfiguration, error) {
	c := *o.config.DeepCopy()
	c.APIVersion, c.Kind = configVersion, configKind
	c.StaticPodURLHeader = nil
	every, err := fs.GetDuration("log-flush-frequency")
	if err != nil {
		return c, err
	}
	level, err := strconv.ParseUint(fs.Lookup("v").Value.String(), 10, 32)
	if err != nil {
		return c, fmt.Errorf("--v: %w", err)
	}
	c.Logging.FlushFrequency.Duration.Duration, c.Logging.Verbosity = every, logs.VerbosityLevel(level)
	c.Logging.Format = fs.Lookup("logging-format").Value.String()
	c.Logging.VModule = nil
	if err := logs.VModuleConfigurationPflag(&c.Logging.VModule).Set(fs.Lookup("vmodule").Value.String()); err != nil {
		return c, fmt.Errorf("--vmodule: %w", err)
	}
	return c, nil
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
	if err := os.WriteFile(o.from.writeTo, data, 0o600); err != nil {
		return fmt.Errorf("--write-config-to: %w", err)
	}
	return nil
}

// resolvePath makes a path from the file at from absolute. On Windows a path without a drive is on the drive of that file, and doubled backslashes
// become one. Older tools mistook "/etc/kubernetes/pki/ca.crt" for a relative path and wrote "C:\var\lib\kubelet\etc\kubernetes\pki\ca.crt"; unless
// that file exists, resolvePath returns the intended path.
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

// backslashes converts a path to the form of Windows. It keeps two leading backslashes.
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

// readFlagsFile parses flags from a file that kubeadm wrote: KUBELET_KUBEADM_ARGS="--a=b --c=d". Those of the command line take precedence. A missing
// file is not an error: kubeadm has not run yet.
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

// unescape reverses the effect of kubeadm's %q on Windows paths. People who edit the file often write single backslashes.
var unescape = strings.NewReplacer(`\\`, `\`, `\"`, `"`)

// flagsOf parses the assignment of KUBELET_KUBEADM_ARGS.
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
		return strings.Fields(unescape.Replace(strings.Trim(value, `"`))), nil
	}
	return nil, nil
}

// newConfigCommand returns `kubelet config check`.
func newConfigCommand(out io.Writer) *cobra.Command {
	parent := &cobra.Command{Use: "config", Short: "Explains the kubelet's configuration file", Args: cobra.NoArgs}
	dir := ""
	check := &cobra.Command{
		Use:   "check FILE",
		Short: "Checks a configuration file, and names its fields that have no effect here",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return checkConfig(fileFlags{config: args[0], dir: dir}, out)
		},
	}
	check.Flags().StringVar(&dir, "config-dir", "", "`directory` of drop-ins, the same as the kubelet's")
	parent.AddCommand(check)
	return parent
}

func checkConfig(from fileFlags, out io.Writer) error {
	facts, err := host.Read()
	if err != nil {
		return err
	}
	o, _, err := (&options{from: from}).withFiles(nil, nil, facts.OS)
	if err != nil {
		return err
	}
	o.api.servers = "https://kubernetes.invalid" // not settable in a configuration file
	if _, err := o.settings(facts); err != nil {
		return o.file.Located(err)
	}
	for _, note := range o.notes() {
		fmt.Fprintln(out, note)
	}
	fmt.Fprintf(out, "%s: good; fields that are set: %d\n", from.config, len(o.file.Places))
	return nil
}
