package app

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/cni"
	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/cri"
	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/doctor"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/netsh"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/network/hostnet"
	"github.com/winkube/winkube/pkg/nodejoin"
	"github.com/winkube/winkube/pkg/podcgroup"
	"github.com/winkube/winkube/pkg/report"
	"github.com/winkube/winkube/pkg/volume/mount"
)

// newNodeCommand returns `kubelet node join` and `kubelet node leave`.
func newNodeCommand(out io.Writer) *cobra.Command {
	parent := &cobra.Command{Use: "node", Short: "Joins this server to a cluster as a node, or removes it", Args: cobra.NoArgs}
	parent.AddCommand(newJoinCommand(out), newLeaveCommand(out))
	return parent
}

// joinOptions are the flags of `kubelet node join`.
type joinOptions struct {
	nodejoin.Config
	target, root string
}

func newJoinCommand(out io.Writer) *cobra.Command {
	o := &joinOptions{}
	join := &cobra.Command{
		Use:   "join SERVER --token=TOKEN --" + nodejoin.HashFlag + "=sha256:HASH [-- KUBELET FLAGS [-- PROXY FLAGS]]",
		Short: "Makes this server a node: checks, credentials, directories, services, network, doctor",
		Long: "Makes this server a node of the cluster at SERVER. Run it from the directory that has kubelet and proxy. `kubeadm token create --print-join-command`\n" +
			"prints SERVER, --token and --" + nodejoin.HashFlag + ". It checks everything first and changes nothing if something is wrong. Run it again at any time:\n" +
			"it changes only what differs. Flags after -- are for the kubelet, those after a second -- for the proxy.",
		Example: "  kubelet node join 10.0.0.1:6443 --token=abcdef.0123456789abcdef --" + nodejoin.HashFlag + "=sha256:... -- --max-pods=50",
		Args:    o.arguments,
	}
	fs := join.Flags()
	fs.StringVar(&o.Token, "token", "", "join `token` of kubeadm, ID.SECRET")
	fs.StringSliceVar(&o.Hashes, nodejoin.HashFlag, nil, "`hashes` of the public key of the cluster's CA, sha256:HEX")
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "ca-cert-hash" {
			name = nodejoin.HashFlag
		}
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	fs.StringVar(&o.Kubeconfig, "kubeconfig", "", "`file` with the node's own credentials, in place of SERVER and --token; needs --proxy-kubeconfig")
	fs.StringVar(&o.ProxyKubeconfig, "proxy-kubeconfig", "", "`file` with the proxy's credentials (role system:node-proxier); default: the join token requests them")
	fs.StringVar(&o.NodeName, "node-name", "", "`name` of the Node (default: the host's name in lower case)")
	fs.StringVar(&o.NodeIP, "node-ip", "", "`address` of the node (default: that of the default route)")
	fs.StringVar(&o.Programs, "programs", "", "`directory` from which kubelet and proxy are copied (default: that of this program)")
	addLayoutFlags(fs, &o.target, &o.root)
	fs.DurationVar(&o.Patience, "timeout", 2*time.Minute, "how long to wait for the certificate, for the Node and for its readiness, each")
	join.RunE = func(command *cobra.Command, _ []string) error {
		silence()
		return o.run(command.Context(), out)
	}
	return join
}

func addLayoutFlags(fs *pflag.FlagSet, target, root *string) {
	plain := nodejoin.LayoutOf(runtime.GOOS, "", "")
	fs.StringVar(target, "target", "", "`directory` of the installed programs, on Windows also of their configuration (default: "+plain.Programs+")")
	fs.StringVar(root, "root-dir", "", "`directory` of the kubelet (default: "+plain.Root+")")
}

// arguments parses SERVER, and the programs' flags after the first and the second --.
func (o *joinOptions) arguments(command *cobra.Command, args []string) error {
	own := args
	if at := command.ArgsLenAtDash(); at >= 0 {
		own, o.KubeletFlags = args[:at], args[at:]
		if i := slices.Index(o.KubeletFlags, "--"); i >= 0 {
			o.KubeletFlags, o.ProxyFlags = o.KubeletFlags[:i], o.KubeletFlags[i+1:]
		}
	}
	for _, f := range slices.Concat(o.KubeletFlags, o.ProxyFlags) {
		if !strings.HasPrefix(f, "-") {
			return fmt.Errorf("argument %q after --: want flags of the form --name=value", f)
		}
	}
	if len(own) > 1 {
		return fmt.Errorf("arguments %q: want one SERVER; flags of the programs stand after --", own)
	}
	if len(own) == 1 {
		o.Server = own[0]
	}
	return nil
}

// silence keeps log lines out of the progress output: errors are returned.
func silence() {
	logs := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(logs)
	_ = logs.Set("logtostderr", "false") // known flags of klog with valid values
	_ = logs.Set("stderrthreshold", "FATAL")
	klog.SetOutput(io.Discard)
}

func (o *joinOptions) run(ctx context.Context, out io.Writer) error {
	facts, err := host.Read()
	if err != nil {
		return err
	}
	if o.Programs == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("--programs: %w", err)
		}
		o.Programs = filepath.Dir(self)
	}
	o.Layout = nodejoin.LayoutOf(facts.OS, o.target, o.root)
	for _, path := range []*string{&o.Kubeconfig, &o.ProxyKubeconfig, &o.Programs} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	parsed := &options{}
	if _, err := parsed.parseTo(o.KubeletFlags, io.Discard); err != nil {
		return fmt.Errorf("flags for the kubelet: %w", err)
	}
	elevated, _ := host.Elevated()
	run := command.New()
	return nodejoin.Join(ctx, o.Config, nodejoin.Parts{
		Out: out, Now: time.Now, UserAgent: daemon.UserAgent("kubelet"), Facts: facts, Elevated: elevated, Services: nodejoin.NewServices(o.Layout, run, daemon.Installed),
		Engine: func(ctx context.Context) (docker.Info, error) {
			engine, err := docker.New(docker.Config{Host: parsed.runtime.endpoint, Platform: platformOf(facts), CallTimeout: 10 * time.Second})
			if err != nil {
				return docker.Info{}, fmt.Errorf("--docker-endpoint=%s: %w", parsed.runtime.endpoint, err)
			}
			return engine.Client.Info(ctx)
		},
		CheckKubelet: func() error { return o.checkKubelet(facts) },
		CheckProxy: func(ctx context.Context, flags []string) error {
			if len(flags) == 0 {
				return nil
			}
			program := filepath.Join(o.Programs, filepath.Base(o.Layout.Proxy()))
			_, err := run.Run(ctx, nil, program, append([]string{"--init-only"}, flags...)...)
			return err
		},
		Runs: func(ctx context.Context, program string) error {
			_, err := run.Run(ctx, nil, program, "--version")
			return err
		},
		PortFree:   func() error { return daemon.PortFree(parsed.config.Port) },
		ProtectDir: daemon.ProtectDir, CheckOwner: daemon.CheckOwner, CopyProgram: daemon.CopyProgram,
		Doctor: func(ctx context.Context, nodeConfig string) error { return o.doctor(ctx, out, nodeConfig) },
	})
}

// checkKubelet checks the kubelet's flags like `service install`. Nothing reads the kubeconfig, which does not exist yet, so any file takes its place.
func (o *joinOptions) checkKubelet(facts host.Facts) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	flags := []string{"--kubeconfig=" + self, "--root-dir=" + o.Layout.Root}
	if o.NodeName != "" {
		flags = append(flags, "--hostname-override="+o.NodeName)
	}
	if o.NodeIP != "" {
		flags = append(flags, "--node-ip="+o.NodeIP)
	}
	_, err = checkServiceOn(facts, append(flags, o.KubeletFlags...))
	return err
}

// doctor runs the checks of `kubelet doctor` with the kubelet's flags.
func (o *joinOptions) doctor(ctx context.Context, out io.Writer, nodeConfig string) error {
	h := &hostDoctorOptions{}
	fs := pflag.NewFlagSet("doctor", pflag.ContinueOnError)
	fs.ParseErrorsAllowlist.UnknownFlags = true // flags that only the kubelet has
	h.add(fs)
	args := append(slices.Clone(o.KubeletFlags), "--kubeconfig="+nodeConfig, "--root-dir="+o.Layout.Root)
	if o.NodeIP != "" {
		args = append(args, "--node-ip="+o.NodeIP)
	}
	if err := fs.Parse(args); err != nil {
		return err
	}
	awaitProxy(ctx)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	symptoms, err := h.symptoms(ctx)
	if err != nil {
		return err
	}
	return printed(out, doctor.Diagnose(symptoms))
}

// proxyPatience is how long a proxy that was just started has to report how it serves Services. On Windows it may first wait for a new adapter.
const proxyPatience = 45 * time.Second

// awaitProxy waits until the proxy has reported. If it does not, doctor says so.
func awaitProxy(ctx context.Context) {
	file, err := report.FactsOfHost(runtime.GOOS == "windows")
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, proxyPatience)
	defer cancel()
	_ = file.Watch(ctx, func() { // an error: doctor reads the file
		if facts, err := file.Read(); err == nil && facts.Serving.BackEnd != "" {
			cancel()
		}
	})
}

func newLeaveCommand(out io.Writer) *cobra.Command {
	var target, root, endpoint string
	var removeData bool
	leave := &cobra.Command{
		Use:   "leave",
		Short: "Removes what join and the programs created on this server; logs and pods' data stay",
		Long: "Removes what `kubelet node join` and the programs created on this server: services, pods, networks, addresses, routes, rules, credentials and programs.\n" +
			"Drain the node first: kubectl drain NAME --ignore-daemonsets --delete-emptydir-data. Run it again at any time.",
		Args: cobra.NoArgs,
	}
	addLayoutFlags(leave.Flags(), &target, &root)
	leave.Flags().StringVar(&endpoint, "docker-endpoint", "", "the same as the kubelet's")
	leave.Flags().BoolVar(&removeData, "remove-data", false, "remove also the kubelet's directory with the pods' volumes, and the logs")
	leave.RunE = func(c *cobra.Command, _ []string) error {
		silence()
		facts, err := host.Read()
		if err != nil {
			return err
		}
		layout := nodejoin.LayoutOf(facts.OS, target, root)
		elevated, _ := host.Elevated()
		engine, err := docker.New(docker.Config{Host: endpoint, Platform: platformOf(facts), InfraImage: defaultInfraImage, LogsDir: defaultPodLogsDir()})
		if err != nil {
			return fmt.Errorf("--docker-endpoint=%s: %w", endpoint, err)
		}
		return nodejoin.Leave(c.Context(), layout, removeData, nodejoin.LeaveParts{Out: out, Now: time.Now, OS: facts.OS, Elevated: elevated,
			Services: nodejoin.NewServices(layout, command.New(), daemon.Installed), Run: command.NewWith,
			Pods: func(ctx context.Context) (int, error) {
				return removePods(ctx, criEngine{engine.Client, engine.Images, engine.Usage, engine.Containers})
			},
			Release: func(ctx context.Context) ([]string, error) { return releasePods(ctx, layout.Root, facts.WindowsBuild) },
			Cgroups: podcgroup.NoteFileIn(layout.Root).Undo,
			Network: func(ctx context.Context) ([]string, error) {
				networks, err := network.Remove(ctx, engine.Networks, hostnet.New(), facts.OS, hostnet.RemoveHNS)
				links, failed := hostnet.RemovePodLinks()
				return append(networks, links...), errors.Join(err, failed)
			},
			Forwarding: func() ([]string, error) {
				return network.ForwardingFileIn(layout.Root).Undo(hostnet.StopForwarding)
			},
			Firewall:    func(ctx context.Context) error { return netsh.New(command.New()).Admit(ctx, network.FirewallRule, "") },
			Unmount:     func(dir string) (int, error) { return unmountBelow(mount.System(), dir) },
			RemoveLater: daemon.RemoveLater,
		})
	}
	return leave
}

// removePods removes the pods of this host's engine, as `kubelet cri` does for kubeadm.
func removePods(ctx context.Context, engine cri.Engine) (int, error) {
	server := cri.New(engine, defaultInfraImage)
	list, err := server.ListPodSandbox(ctx, nil)
	if err != nil {
		return 0, err
	}
	for i, item := range list.Items {
		if _, err := server.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: item.Id}); err != nil {
			return i, fmt.Errorf("pod %s/%s: %w", item.Metadata.Namespace, item.Metadata.Name, err)
		}
	}
	return len(list.Items), nil
}

// releasePods has CNI plugins take back what they gave to the pods, which are removed: no kubelet does it any more.
func releasePods(ctx context.Context, root string, build int) (removed []string, err error) {
	count, err := cni.ReleaseAll(ctx, cni.Config{BinDirs: []string{defaultCNIBin}, StateDir: cni.StateIn(root), WindowsBuild: build})
	if count > 0 {
		removed = []string{fmt.Sprintf("%d containers from the network of CNI plugins", count)}
	}
	return removed, err
}

// unmountBelow ends the mounts of volumes, inner ones first.
func unmountBelow(mounter mount.Mounter, dir string) (int, error) {
	points, err := mounter.Below(dir)
	if err != nil {
		return 0, err
	}
	slices.SortFunc(points, func(a, b string) int { return len(b) - len(a) })
	for i, point := range points {
		if err := mounter.Unmount(point); err != nil {
			return i, fmt.Errorf("cannot unmount %s: %w", point, err)
		}
	}
	return len(points), nil
}
