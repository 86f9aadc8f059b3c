package app

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/winkube/winkube/pkg/proxy"
)

// newTableCommand makes `proxy table`, which prints the table of manifests without touching the host or asking an API server.
func newTableCommand(stdin io.Reader, stdout io.Writer) *cobra.Command {
	var files []string
	var node proxy.NodeInfo
	command := &cobra.Command{
		Use:   "table -f services.yaml",
		Short: "Print what a node would serve for Services and EndpointSlices in files (- is standard input)",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if len(files) == 0 {
				return errors.New("want -f with a file of Services and EndpointSlices")
			}
			var services []*v1.Service
			var slices []*discovery.EndpointSlice
			for _, file := range files {
				s, e, err := readManifest(file, stdin)
				if err != nil {
					return err
				}
				services, slices = append(services, s...), append(slices, e...)
			}
			table, problems := proxy.BuildWithProblems(services, slices, node)
			for _, p := range problems {
				fmt.Fprintf(os.Stderr, "left out: %s\n", p)
			}
			return table.Fprint(stdout)
		},
	}
	command.Flags().StringArrayVarP(&files, "filename", "f", nil, "`file` with Services, EndpointSlices or lists of them, in YAML or JSON")
	command.Flags().StringVar(&node.Name, "node", "", "`name` of the node, for what is local to it")
	command.Flags().StringVar(&node.Zone, "zone", "", "the node's `zone`, for topology hints")
	return command
}

// readManifest reads the Services and EndpointSlices of a file; objects of other kinds are passed over.
func readManifest(file string, stdin io.Reader) ([]*v1.Service, []*discovery.EndpointSlice, error) {
	in := stdin
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, nil, fmt.Errorf("cannot read manifest: %w", err)
		}
		defer f.Close()
		in = f
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(v1.AddToScheme(scheme), discovery.AddToScheme(scheme)); err != nil {
		return nil, nil, err
	}
	r := manifest{decoder: serializer.NewCodecFactory(scheme).UniversalDeserializer()}
	documents := yaml.NewYAMLOrJSONDecoder(in, 4096)
	for {
		var raw runtime.RawExtension
		if err := documents.Decode(&raw); errors.Is(err, io.EOF) {
			return r.services, r.slices, nil
		} else if err != nil {
			return nil, nil, fmt.Errorf("cannot read manifest %s: %w", file, err)
		}
		if err := r.add(raw.Raw); err != nil {
			return nil, nil, fmt.Errorf("cannot read manifest %s: %w", file, err)
		}
	}
}

type manifest struct {
	decoder  runtime.Decoder
	services []*v1.Service
	slices   []*discovery.EndpointSlice
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
	case *v1.ServiceList:
		for i := range o.Items {
			m.services = append(m.services, &o.Items[i])
		}
	case *discovery.EndpointSliceList:
		for i := range o.Items {
			m.slices = append(m.slices, &o.Items[i])
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
