package app

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/winkube/winkube/pkg/cni"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/network/doctor"
)

// doctorOptions are the flags of `kubelet network doctor`, with the same meaning as the kubelet's.
type doctorOptions struct {
	mode, endpoint         string
	windows, adapter       string
	interfaces             string
	nodeIP, podCIDRs, keep []string
	services               []string
	cniConfDir             string
	cniBinDirs             []string
	windowsFirewall        bool
}

// newDoctorCommand returns `kubelet network doctor`.
func newDoctorCommand(out io.Writer) *cobra.Command {
	o := &doctorOptions{}
	command := &cobra.Command{
		Use:   "doctor",
		Short: "Says what is wrong with this host's pod network and how to repair it, without touching the host",
		Long: "Says what is wrong with this host's pod network and how to repair it, without touching the host. Give the kubelet's flags.\n" +
			"Without --pod-cidr the range is that of the network which the kubelet made.",
		Args: cobra.NoArgs,
	}
	o.add(command.Flags())
	command.RunE = func(*cobra.Command, []string) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		symptoms, err := o.symptoms(ctx)
		if err != nil {
			return err
		}
		return printed(out, doctor.Diagnose(symptoms))
	}
	return command
}

// add declares the flags.
func (o *doctorOptions) add(fs *pflag.FlagSet) {
	fs.StringVar(&o.mode, "network-mode", string(network.HostGateway), "the same as the kubelet's")
	fs.StringVar(&o.interfaces, "pod-interfaces", "", "the same as the kubelet's")
	fs.StringVar(&o.windows, "windows-network", "", "the same as the kubelet's")
	fs.StringVar(&o.adapter, "interface", "", "the same as the kubelet's")
	fs.BoolVar(&o.windowsFirewall, "windows-firewall", true, "the same as the kubelet's")
	fs.StringVar(&o.endpoint, "docker-endpoint", "", "Docker Engine's `address`")
	fs.StringSliceVar(&o.nodeIP, "node-ip", nil, "`addresses` of the node (default: that of the default route)")
	fs.StringSliceVar(&o.podCIDRs, "pod-cidr", nil, "pods' `ranges` on this node")
	fs.StringSliceVar(&o.keep, "cluster-cidr", nil, "`ranges` of all pods")
	fs.StringSliceVar(&o.services, "service-cidr", nil, "`ranges` of services' addresses")
	addCNIFlags(fs, &o.cniConfDir, &o.cniBinDirs)
}

// symptoms reads the host.
func (o *doctorOptions) symptoms(ctx context.Context) (doctor.Symptoms, error) {
	s := doctor.Symptoms{NoRule: !o.windowsFirewall}
	facts, err := host.Read()
	if err != nil {
		return s, err
	}
	s.Config = network.Config{Mode: network.Mode(o.mode), Platform: platformOf(facts), External: os.Getenv("CONTAINER_NETWORK"),
		Windows: network.WindowsNetwork(o.windows), Adapter: o.adapter}
	if err := s.Config.ChooseInterfaces(o.interfaces); err != nil {
		return s, fmt.Errorf("--pod-interfaces=%s: %w", o.interfaces, err)
	}
	if s.Config.External != "" {
		s.Config.Mode = network.External
	}
	if err := s.Config.CheckWindows(); err != nil {
		return s, err
	}
	if s.Config.Mode == network.CNI {
		name, file, err := cni.Find(cni.Config{ConfDir: o.cniConfDir, BinDirs: o.cniBinDirs, WindowsBuild: s.Config.Platform.Build})
		s.Plugins, s.PluginErr = fmt.Sprintf("%q of %s", name, file), err
	}
	if s.Config.NonMasquerade, err = parsePrefixes("cluster-cidr", o.keep); err != nil {
		return s, err
	}
	if s.Config.Services, err = parsePrefixes("service-cidr", o.services); err != nil {
		return s, err
	}
	if len(o.nodeIP) == 0 {
		o.nodeIP = []string{""}
	}
	for _, override := range o.nodeIP {
		addrs, err := host.NodeAddress(override)
		if err != nil {
			return s, fmt.Errorf("--node-ip=%s: %w", override, err)
		}
		s.Config.NodeIPs = append(s.Config.NodeIPs, addrs...)
	}
	s.Elevated, _ = host.Elevated()
	if err := doctor.Examine(ctx, &s); err != nil {
		return s, err
	}
	return s, o.plan(ctx, &s, facts)
}

// plan plans the network for the given pod range, or the range of the existing network.
func (o *doctorOptions) plan(ctx context.Context, s *doctor.Symptoms, facts host.Facts) error {
	engine, err := docker.New(docker.Config{Host: o.endpoint, Node: facts.Hostname, Platform: s.Config.Platform, CallTimeout: 10 * time.Second})
	if err != nil {
		return fmt.Errorf("--docker-endpoint=%s: %w", o.endpoint, err)
	}
	in := network.Facts{PodCIDRs: o.podCIDRs}
	if s.Networks, s.EngineErr = engine.Networks.Networks(ctx); s.EngineErr == nil {
		if version, err := engine.Client.ReleaseVersion(ctx); err == nil {
			in.EngineVersion = version
		}
	}
	for _, n := range s.Networks {
		if network.Ours(n, s.Config.EngineName()) && len(o.podCIDRs) == 0 {
			for _, subnet := range n.Subnets {
				in.PodCIDRs = append(in.PodCIDRs, subnet.String())
			}
		}
	}
	if s.Config.Interfaces == network.ByKubelet && len(in.PodCIDRs) == 0 {
		for _, p := range s.PodBridge() {
			in.PodCIDRs = append(in.PodCIDRs, p.String())
		}
	}
	if s.Own.Subnet.IsValid() && len(in.PodCIDRs) == 0 {
		in.PodCIDRs = []string{s.Own.Subnet.String()}
	}
	in.MTU, in.Adapter = s.MTU(s.Config.NodeIPs), s.Adapter(s.Config.NodeIPs)
	if s.State, err = network.Plan(s.Config, in); err != nil {
		return fmt.Errorf("--network-mode=%s: %w", o.mode, err)
	}
	return nil
}
