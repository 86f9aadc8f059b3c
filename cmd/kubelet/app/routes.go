package app

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/routes"
)

// routesOptions are the flags of `kubelet network routes`.
type routesOptions struct {
	kubeconfig, node, form, nextHop, link string
	files, clusterCIDRs                   []string
}

// newRoutesCommand returns `kubelet network routes`.
func newRoutesCommand(stdin io.Reader, out io.Writer) *cobra.Command {
	o := &routesOptions{}
	command := &cobra.Command{
		Use:   "routes",
		Short: "Prints the routes to all nodes' pods, for a router or for a host, without touching the host",
		Long: "Prints the routes to all nodes' pods: what the router gets with --network-mode=upstream, or with --node what one host gets. The Nodes come from\n" +
			"a file, or from the API server with credentials that may list Nodes, which a kubelet's own may not.",
		Example: "  kubectl get nodes -o yaml | kubelet network routes -f - --form=ip-route\n" +
			"  kubelet network routes --kubeconfig=admin.conf --node=win01 --form=route-add --route-next-hop=pod-gateway --interface=12",
		Args: cobra.NoArgs,
	}
	fs := command.Flags()
	fs.StringSliceVarP(&o.files, "filename", "f", nil, "`file` with Nodes, - for standard input")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "`file` with the API server's address and credentials that may list Nodes")
	fs.StringVar(&o.node, "node", "", "`name` of the Node for which the routes are; empty: a router, which has no pods")
	fs.StringSliceVar(&o.clusterCIDRs, "cluster-cidr", nil, "`ranges` of all pods: what is outside of them gets no route; empty: they are learnt from the Nodes")
	fs.StringVar(&o.form, "form", "all", "ip-route: for Linux; route-add: for Windows; generic: columns; all of them")
	fs.StringVar(&o.nextHop, "route-next-hop", "node", "node: the other node's address; pod-gateway: the first address of its pods' range")
	fs.StringVar(&o.link, "interface", "", "`name` (Linux) or index (Windows) of the interface towards the nodes, for pod-gateway")
	command.RunE = func(*cobra.Command, []string) error {
		nodes, err := o.nodes(stdin)
		if err != nil {
			return err
		}
		return o.print(out, nodes)
	}
	return command
}

func (o *routesOptions) print(out io.Writer, nodes []*v1.Node) error {
	hop := routes.NextHop(o.nextHop)
	if o.nextHop == "node" { // the value of the proxy's flag
		hop = routes.NodeIP
	} else if hop != routes.PodGateway {
		return fmt.Errorf("--route-next-hop=%s: want node or pod-gateway", o.nextHop)
	}
	forms := []routes.Form{routes.IPRoute, routes.RouteAdd, routes.Generic}
	if o.form != "all" {
		form, err := routes.ParseForm(o.form)
		if err != nil {
			return fmt.Errorf("--form: %w", err)
		}
		forms = []routes.Form{form}
	}
	opts := routes.Options{NextHop: hop}
	for _, text := range o.clusterCIDRs {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("--cluster-cidr=%s: want a range such as 10.244.0.0/16", text)
		}
		opts.Known.ClusterCIDRs = append(opts.Known.ClusterCIDRs, prefix.Masked())
	}
	state, problems := routes.Plan(routes.HostGateway, o.node, nodes, opts)
	var b bytes.Buffer
	for i, form := range forms {
		if len(forms) > 1 {
			fmt.Fprintf(&b, "%s# %s\n", map[bool]string{true: "\n"}[i > 0], form)
		}
		b.WriteString(state.Lines(form, o.link))
	}
	for _, p := range problems {
		fmt.Fprintf(&b, "# no route: %s\n", p)
	}
	_, err := out.Write(b.Bytes())
	return err
}

func (o *routesOptions) nodes(stdin io.Reader) ([]*v1.Node, error) {
	if (len(o.files) > 0) == (o.kubeconfig != "") {
		return nil, errors.New("want either --filename or --kubeconfig")
	}
	if o.kubeconfig != "" {
		return listNodes(o.kubeconfig)
	}
	var nodes []*v1.Node
	for _, path := range o.files {
		data, err := readInput(path, stdin)
		if err != nil {
			return nil, err
		}
		more, err := decodeNodes(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		nodes = append(nodes, more...)
	}
	return nodes, nil
}

func listNodes(kubeconfig string) ([]*v1.Node, error) {
	config, err := kubeclient.Config(kubeclient.Options{Kubeconfig: kubeconfig, UserAgent: daemon.UserAgent("kubelet")})
	if err != nil {
		return nil, err
	}
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig=%s: %w", kubeconfig, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	list, err := client.Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("cannot list nodes: %w", err)
	}
	return pointers(list.Items), nil
}

// decodeNodes decodes Nodes and NodeLists, in YAML or JSON.
func decodeNodes(data []byte) (nodes []*v1.Node, err error) {
	documents := yamlutil.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read nodes: %w", err)
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		list := struct {
			metav1.TypeMeta
			Items []v1.Node `json:"items"`
		}{}
		if err := yaml.Unmarshal(document, &list); err != nil {
			return nil, fmt.Errorf("cannot parse nodes: %w", err)
		}
		switch list.Kind {
		case "Node":
			one := &v1.Node{}
			if err := yaml.Unmarshal(document, one); err != nil {
				return nil, fmt.Errorf("cannot parse the node: %w", err)
			}
			nodes = append(nodes, one)
		case "List", "NodeList":
			nodes = append(nodes, pointers(list.Items)...)
		default:
			return nil, fmt.Errorf("it holds a %q; want Node, NodeList or List", list.Kind)
		}
	}
	if len(nodes) == 0 {
		return nil, errors.New("it holds no Node")
	}
	return nodes, nil
}

func pointers(nodes []v1.Node) []*v1.Node {
	out := make([]*v1.Node, len(nodes))
	for i := range nodes {
		out[i] = &nodes[i]
	}
	return out
}
