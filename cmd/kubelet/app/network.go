package app

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/pod/plan"
	"github.com/winkube/winkube/pkg/pod/source"
)

// newNetworkCommand returns `kubelet network` with its subcommands.
func newNetworkCommand(stdin io.Reader, out io.Writer) *cobra.Command {
	parent := &cobra.Command{Use: "network", Short: "Explains this node's pod network", Args: cobra.NoArgs}
	parent.AddCommand(newNetworkPlanCommand(out), newRoutesCommand(stdin, out), newDoctorCommand(out))
	return parent
}

// newNetworkPlanCommand returns `kubelet network plan`.
func newNetworkPlanCommand(out io.Writer) *cobra.Command {
	o := struct {
		platform               platformFlags
		mode, engine           string
		interfaces             string
		windows, adapter       string
		services               []string
		podCIDRs, out, nodeIPs []string
		mtu                    int
	}{}
	plan := &cobra.Command{
		Use:     "plan --pod-cidr=10.244.1.0/24",
		Short:   "Prints the network that would be made for a pod range, without touching the host",
		Example: "  kubelet network plan --pod-cidr=192.168.1.0/24 --os=windows --windows-build=14393",
		Args:    cobra.NoArgs,
	}
	fs := plan.Flags()
	o.platform.add(fs)
	fs.StringVar(&o.mode, "network-mode", string(network.HostGateway), "host-gateway, overlay, upstream, cni or external")
	fs.StringVar(&o.interfaces, "pod-interfaces", "", "engine or kubelet (default: as the kubelet's)")
	fs.StringVar(&o.engine, "engine-version", "", "version of the Docker Engine, as in 28.1.0")
	fs.StringSliceVar(&o.podCIDRs, "pod-cidr", nil, "pods' `ranges` on the node")
	fs.StringSliceVar(&o.out, "cluster-cidr", nil, "`ranges` of all pods: traffic to them keeps the pod's address")
	fs.StringSliceVar(&o.nodeIPs, "node-ip", nil, "`addresses` of the node, where tunnels begin")
	fs.StringSliceVar(&o.services, "service-cidr", nil, "`ranges` of services' addresses")
	fs.StringVar(&o.windows, "windows-network", "", "l2bridge, transparent or nat; default: by the build")
	fs.StringVar(&o.adapter, "interface", "", "`name` of the Windows network adapter for the pods' network")
	fs.IntVar(&o.mtu, "mtu", 0, "`bytes` of a packet on the node's own interface; 0: 1500")
	plan.RunE = func(*cobra.Command, []string) error {
		platform, err := o.platform.value()
		if err != nil {
			return err
		}
		cfg := network.Config{Mode: network.Mode(o.mode), Platform: platform, External: os.Getenv("CONTAINER_NETWORK"),
			Windows: network.WindowsNetwork(o.windows), Adapter: o.adapter}
		if err := cfg.ChooseInterfaces(o.interfaces); err != nil {
			return fmt.Errorf("--pod-interfaces=%s: %w", o.interfaces, err)
		}
		if cfg.NonMasquerade, err = parsePrefixes("cluster-cidr", o.out); err != nil {
			return err
		}
		if cfg.Services, err = parsePrefixes("service-cidr", o.services); err != nil {
			return err
		}
		for _, value := range o.nodeIPs {
			addr, err := parseAddr("node-ip", value)
			if err != nil {
				return err
			}
			cfg.NodeIPs = append(cfg.NodeIPs, addr)
		}
		state, err := network.Plan(cfg, network.Facts{PodCIDRs: o.podCIDRs, EngineVersion: o.engine, MTU: o.mtu})
		if err != nil {
			return err
		}
		_, err = fmt.Fprint(out, state)
		return err
	}
	return plan
}

// newPlanCommand returns `kubelet plan`.
func newPlanCommand(stdin io.Reader, out io.Writer) *cobra.Command {
	o := struct {
		platform platformFlags
		files    []string
		node     string
	}{}
	command := &cobra.Command{
		Use:     "plan -f pod.yaml",
		Short:   "Prints what would be done to run a pod, step by step, without touching the host",
		Example: "  kubelet plan -f pod.yaml --os=windows --windows-build=14393",
		Args:    cobra.NoArgs,
	}
	fs := command.Flags()
	o.platform.add(fs)
	fs.StringSliceVarP(&o.files, "filename", "f", nil, "`file` with pods, - for standard input")
	fs.StringVar(&o.node, "node", "node", "`name` of the node")
	command.RunE = func(*cobra.Command, []string) error {
		platform, err := o.platform.value()
		if err != nil {
			return err
		}
		if len(o.files) == 0 {
			return fmt.Errorf("--filename: want a file with a pod, or - for standard input")
		}
		for _, path := range o.files {
			data, err := readInput(path, stdin)
			if err != nil {
				return err
			}
			if err := explain(out, data, platform, o.node); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
		return nil
	}
	return command
}

// explain prints the plans of the pods in a manifest.
func explain(out io.Writer, data []byte, platform pod.Platform, node string) error {
	pods, err := source.DecodeManifest(data)
	if err != nil {
		return err
	}
	for _, p := range pods {
		p.Spec.NodeName = node
		if _, err := fmt.Fprintf(out, "pod %s/%s on %s\n%s", p.Namespace, p.Name, describe(platform), plan.Explain(p, pod.Observed{}, platform, now())); err != nil {
			return err
		}
	}
	return nil
}
