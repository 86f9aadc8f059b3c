package app

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/winkube/winkube/pkg/proxy"
)

// newTableCommand returns `proxy table`, which prints the table of manifests without touching the host or asking an API
// server.
func newTableCommand(stdin io.Reader, stdout io.Writer) *cobra.Command {
	var files []string
	var node proxy.NodeInfo
	command := &cobra.Command{
		Use:   "table -f services.yaml",
		Short: "Print what a node would serve for Services and EndpointSlices in files (- is standard input)",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if len(files) == 0 {
				return errors.New("want -f with a file of Services and EndpointSlices, and maybe Nodes and ServiceCIDRs")
			}
			m, err := newManifest()
			if err != nil {
				return err
			}
			for _, file := range files {
				if err := m.read(file, stdin); err != nil {
					return err
				}
			}
			tracker := m.tracker(node)
			for _, p := range tracker.AllProblems() {
				fmt.Fprintf(os.Stderr, "left out: %s\n", p)
			}
			for _, n := range m.nodes {
				if text := tracker.Disbelieved(n.Name); text != "" {
					fmt.Fprintf(os.Stderr, "not believed: %s: %s\n", n.Name, text)
				}
			}
			return tracker.Table().Fprint(stdout)
		},
	}
	command.Flags().StringArrayVarP(&files, "filename", "f", nil, "`file` with Services, EndpointSlices, Nodes, ServiceCIDRs or lists of them, in YAML or JSON")
	command.Flags().StringVar(&node.Name, "node", "", "`name` of the node, for what is local to it")
	command.Flags().StringVar(&node.Zone, "zone", "", "the node's `zone`, for topology hints")
	return command
}

// manifest holds the objects of files.
type manifest struct {
	decoder  runtime.Decoder
	services []*v1.Service
	slices   []*discovery.EndpointSlice
	nodes    []*v1.Node
	ranges   []netip.Prefix // of ServiceCIDRs
}

func newManifest() (*manifest, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(v1.AddToScheme(scheme), discovery.AddToScheme(scheme), networking.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	return &manifest{decoder: serializer.NewCodecFactory(scheme).UniversalDeserializer()}, nil
}

// tracker returns a Tracker that has decided what a node serves for the manifest.
func (m *manifest) tracker(node proxy.NodeInfo) *proxy.Tracker {
	t := proxy.NewTracker(node, proxy.Holders{ServiceRanges: m.ranges})
	for _, n := range m.nodes {
		holding := proxy.NodeHoldingOf(n)
		t.SetNodeHolding(n.Name, &holding)
	}
	for _, s := range m.services {
		t.SetService(s)
	}
	for _, s := range m.slices {
		t.SetSlice(s)
	}
	t.Update()
	return t
}

// read adds the objects of a file and skips other kinds.
func (m *manifest) read(file string, stdin io.Reader) error {
	in := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return fmt.Errorf("cannot read manifest: %w", err)
		}
		defer f.Close()
		in = f
	}
	documents := yaml.NewYAMLOrJSONDecoder(in, 4096)
	for {
		var raw runtime.RawExtension
		if err := documents.Decode(&raw); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("cannot read manifest %s: %w", file, err)
		}
		if err := m.add(raw.Raw); err != nil {
			return fmt.Errorf("cannot read manifest %s: %w", file, err)
		}
	}
}

func (m *manifest) add(raw []byte) error {
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	object, _, err := m.decoder.Decode(raw, nil, nil)
	if runtime.IsNotRegisteredError(err) {
		return nil
	}
	if err != nil {
		return err
	}
	switch o := object.(type) {
	case *v1.Service:
		m.services = append(m.services, o)
	case *discovery.EndpointSlice:
		m.slices = append(m.slices, o)
	case *v1.Node:
		m.nodes = append(m.nodes, o)
	case *networking.ServiceCIDR:
		return m.addRange(o)
	case *v1.ServiceList:
		for i := range o.Items {
			m.services = append(m.services, &o.Items[i])
		}
	case *discovery.EndpointSliceList:
		for i := range o.Items {
			m.slices = append(m.slices, &o.Items[i])
		}
	case *v1.NodeList:
		for i := range o.Items {
			m.nodes = append(m.nodes, &o.Items[i])
		}
	case *v1.List:
		for _, item := range o.Items {
			if err := m.add(item.Raw); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *manifest) addRange(o *networking.ServiceCIDR) error {
	for _, text := range o.Spec.CIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return fmt.Errorf("ServiceCIDR %s spec.cidrs: %q must be a range such as 10.96.0.0/12", o.Name, text)
		}
		m.ranges = append(m.ranges, p)
	}
	return nil
}
