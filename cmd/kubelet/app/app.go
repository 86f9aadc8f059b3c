// Package app is the kubelet's command line: flags in, one kubelet.Config out, and the agent run with it. `kubelet plan` prints what
// would be done for a manifest, without a host.
package app

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/kubelet"
	"github.com/winkube/winkube/pkg/netsh"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/vxlan"
)

// Main runs the kubelet with a command line and returns the exit code. Mistakes of the user are one line on stderr and code 1.
func Main(args []string) int {
	code := 0
	command := newCommand(&code, args)
	command.SetArgs(args)
	if err := command.Execute(); err != nil {
		fmt.Fprintf(os.Stderr, "kubelet: %v (kubelet --help lists the flags)\n", err)
		return 1
	}
	return code
}

func newCommand(code *int, args []string) *cobra.Command {
	root := &cobra.Command{
		Use:           "kubelet",
		Short:         "Runs the pods of a Kubernetes node with Docker, on Windows Server 2016 to 2025 and on Linux",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.DisableDefaultCmd = true
	fs := root.Flags()
	root.RunE = func(*cobra.Command, []string) error {
		if daemon.PrintVersion(os.Stdout, fs) {
			return nil
		}
		var err error
		*code, err = run(args)
		return err
	}
	shown := &options{} // for --help and for mistakes; run parses again, over the files
	setDefaults(&shown.config)
	if err := shown.addFlags(fs); err != nil {
		root.RunE = func(*cobra.Command, []string) error { return err }
	}
	fs.VisitAll(func(f *pflag.Flag) { f.Deprecated = "" }) // run says it
	root.AddCommand(newPlanCommand(os.Stdin, os.Stdout), newNetworkCommand(os.Stdin, os.Stdout), newConfigCommand(os.Stdout), newCRICommand(code), newHostDoctorCommand(os.Stdout))
	daemon.AddServiceCommand(root, service)
	return root
}

// collectAt is the default GOGC. What the agent keeps is small (5 MB with 40 pods), what it makes when many pods start together is much more:
// 150 instead of Go's 100 saves a third of the collections.
const collectAt = 150

// run checks everything that can be checked without changing the host, then runs the agent. A service that cannot begin ends as one, so
// that its manager tries again: after a boot an address, or a disk with a file, may come later than we.
func run(args []string) (int, error) {
	o, fs, cfg, err := prepare(args)
	if err != nil && (fs == nil || o.from.writeTo != "" || !daemon.AsService(fs)) {
		return 1, err
	}
	if o.from.writeTo != "" {
		return 0, o.writeConfig(fs)
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(collectAt)
	}
	// From here on the host is changed.
	return daemon.Run(service.Name, fs, func(ctx context.Context) error {
		if err != nil { // what a service waited for may have been repaired meanwhile
			if o, fs, cfg, err = prepare(args); err != nil {
				return err
			}
		}
		o.logStart(cfg)
		o.protect(cfg)
		var firewall sync.WaitGroup
		defer firewall.Wait()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if cfg.Platform.OS == "windows" {
			firewall.Go(func() { o.setFirewall(ctx, netsh.New(command.New())) })
		}
		return o.join(ctx, cfg)
	}), nil
}

// prepare reads command line, files and host, and makes what the kubelet is made of. It changes nothing on the host. Where a file is wrong, it
// returns the options and flags of the command line alone with the error; without flags the command line is.
func prepare(args []string) (*options, *pflag.FlagSet, kubelet.Config, error) {
	plain := &options{}
	given, err := plain.parse(args)
	if err != nil {
		return plain, nil, kubelet.Config{}, err
	}
	facts, err := host.Read()
	if err != nil {
		return plain, given, kubelet.Config{}, err
	}
	o, fs, err := plain.withFiles(given, args, facts.OS)
	if err != nil {
		return plain, given, kubelet.Config{}, err
	}
	cfg, err := o.settings(facts)
	if err != nil {
		return o, fs, cfg, o.file.Located(err)
	}
	if cfg.Configz, err = o.effective(fs); err != nil || o.api.bootstrapKubeconfig != "" || o.from.writeTo != "" {
		return o, fs, cfg, err
	}
	_, err = o.clientConfig()
	return o, fs, cfg, err
}

func (o *options) logStart(cfg kubelet.Config) {
	klog.InfoS("Starting kubelet", "version", daemon.Version, "kubernetes", daemon.Kubernetes, "node", cfg.NodeName, "os", cfg.Facts.OSImage)
	for _, note := range o.notes() {
		klog.InfoS(note)
	}
	for name, value := range o.config.FeatureGates {
		if name != "HyperVContainer" {
			klog.InfoS("Ignoring this feature gate", "gate", name, "value", value)
		}
	}
	if reservesForWindows(cfg.Platform.OS, &o.config) {
		klog.InfoS("Reserving memory for Windows; set --system-reserved=memory=... to change it", "memory", windowsReserve)
	}
	if elevated, err := host.Elevated(); err == nil && !elevated {
		klog.InfoS("Not running as administrator (root): mounts, networks and addresses will fail")
	}
}

// protect says to the kernel how soon this process may be ended when memory is short (oom_score_adj in proc(5)).
func (o *options) protect(cfg kubelet.Config) {
	if cfg.Platform.OS != "linux" {
		return
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(int(*o.config.OOMScoreAdj))), 0); err != nil {
		klog.InfoS("Warning: cannot set the OOM score of this process (it needs CAP_SYS_RESOURCE)", "--oom-score-adj", *o.config.OOMScoreAdj, "err", err)
	}
}

// setFirewall lets in what this program listens on, or takes that back where it is not to. It may take as long as Windows does.
func (o *options) setFirewall(ctx context.Context, firewall *netsh.Program) {
	var more []netsh.Allow
	if network.Mode(o.network.mode) == network.Overlay {
		more = []netsh.Allow{{Ports: []uint16{vxlan.Port}, UDP: true}} // no process listens: HNS receives it
	}
	if err := firewall.AdmitSelf(ctx, network.FirewallRule, o.network.firewall, more...); err != nil && ctx.Err() == nil {
		klog.InfoS("Cannot open Windows Firewall; other hosts may not reach the kubelet (logs, exec, metrics) and hostPorts", "err", err)
	}
}

// readInput reads a file, or standard input for "-".
func readInput(path string, stdin io.Reader) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(stdin)
	}
	return os.ReadFile(path)
}
