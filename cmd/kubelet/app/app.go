// Package app is the kubelet's command line: it turns flags into a kubelet.Config and runs the agent with it. `kubelet plan` prints the plan for a
// manifest, without a host.
package app

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
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

// Main runs the kubelet with a command line and returns the exit code. User errors are one line on stderr and code 1.
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

// Command returns the command line with its flags and subcommands, for its documentation.
func Command() *cobra.Command { return newCommand(new(int), nil) }

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
	shown := &options{} // for --help and parse errors; run parses again, with the files
	setDefaults(&shown.config)
	shown.addFlags(fs)
	fs.VisitAll(func(f *pflag.Flag) { f.Deprecated = "" }) // run prints the deprecation
	root.AddCommand(newPlanCommand(os.Stdin, os.Stdout), newNetworkCommand(os.Stdin, os.Stdout), newConfigCommand(os.Stdout), newCRICommand(code), newHostDoctorCommand(os.Stdout), newNodeCommand(os.Stdout))
	daemon.AddServiceCommand(root, service)
	return root
}

// run checks everything that it can check without changing the host, then runs the agent. A Windows service that cannot start ends as a service, so
// that the service manager retries: after a boot an address, or a disk with a file, may appear late.
func run(args []string) (int, error) {
	o, fs, cfg, err := prepare(args)
	if err != nil && (fs == nil || o.from.writeTo != "" || !daemon.AsService(fs)) {
		return 1, err
	}
	if o.from.writeTo != "" {
		return 0, o.writeConfig(fs)
	}
	// The host is changed only from here on.
	return daemon.Run(service.Name, fs, func(ctx context.Context) error {
		if err != nil { // the cause may have been repaired while the service waited
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

// prepare reads command line, files and host, and builds the kubelet's Config. It changes nothing on the host. If a file is invalid, it returns the
// options and flags of the command line with the error; if the command line is invalid, the flags are nil.
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
	if err == nil && o.from.writeTo == "" { // a configuration may be written for another host
		err = o.checkKernel(facts.OS, os.DirFS("/proc/sys"))
	}
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
	for _, note := range kubelet.GateNotes(o.config.FeatureGates, cfg.Platform.OS) {
		klog.InfoS(note)
	}
	if reservesForWindows(cfg.Platform.OS, &o.config) {
		klog.InfoS("Reserving memory for Windows; set --system-reserved=memory=... to change it", "memory", windowsReserve)
	}
	if elevated, err := host.Elevated(); err == nil && !elevated {
		klog.InfoS("Not running as administrator (root): mounts, networks and addresses will fail")
	}
}

// protect sets the priority of this process for the kernel's OOM killer (oom_score_adj in proc(5)), how many files it may have open, and what it records
// about itself.
func (o *options) protect(cfg kubelet.Config) {
	if o.config.EnableContentionProfiling && *o.config.EnableProfilingHandler {
		runtime.SetBlockProfileRate(1)
	}
	if cfg.Platform.OS != "linux" {
		return
	}
	if err := limitFiles(uint64(o.config.MaxOpenFiles)); err != nil {
		klog.InfoS("Warning: cannot set the number of files that this process may open", "--max-open-files", o.config.MaxOpenFiles, "err", err)
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(int(*o.config.OOMScoreAdj))), 0); err != nil {
		klog.InfoS("Warning: cannot set the OOM score of this process (it needs CAP_SYS_RESOURCE)", "--oom-score-adj", *o.config.OOMScoreAdj, "err", err)
	}
}

// setFirewall admits connections to this program's ports, or removes the rule if it is not wanted. It may take as long as Windows needs.
func (o *options) setFirewall(ctx context.Context, firewall *netsh.Program) {
	var more []netsh.Allow
	if network.Mode(o.network.mode) == network.Overlay {
		more = []netsh.Allow{{Ports: []uint16{vxlan.Port}, UDP: true}} // no process listens: HNS receives the packets
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
