package proxy

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "rewrite the tables in testdata")

// TestBuild runs testdata/*.txtar: the input is services.yaml, slices.yaml and nodes.yaml, the output a table. In the
// archive's comment, the lines "node NAME", "zone ZONE" and "family IPv4" describe the node; "ranges", "pods",
// "server", "host", "hops", "port" and "nodeports" describe other holders, and "late NODE ADDRESS" a late claim.
func TestBuild(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			services, slices, node, holders := parseScript(t, archive)
			table, problems := BuildWithProblems(services, slices, node, holders)
			got := text(table, problems)
			golden(t, file, archive, got)
			for range 20 { // the order of the arguments does not matter
				rand.Shuffle(len(services), func(i, j int) { services[i], services[j] = services[j], services[i] })
				rand.Shuffle(len(slices), func(i, j int) { slices[i], slices[j] = slices[j], slices[i] })
				rand.Shuffle(len(holders.Nodes), func(i, j int) { holders.Nodes[i], holders.Nodes[j] = holders.Nodes[j], holders.Nodes[i] })
				if again := text(BuildWithProblems(services, slices, node, holders)); again != got {
					t.Fatalf("another order gives another table:\n%s\nwas:\n%s", again, got)
				}
			}
		})
	}
}

// text prints a Table and what was omitted; omissions that are not mistakes are marked.
func text(table *Table, problems []Problem) string {
	out := table.String()
	for _, p := range problems {
		what := "left out: "
		if p.Reason == Elsewhere {
			what = "elsewhere: "
		}
		out += what + p.String() + "\n"
	}
	return out
}

func golden(t *testing.T, file string, archive *txtar.Archive, got string) {
	t.Helper()
	for i := range archive.Files {
		f := &archive.Files[i]
		if f.Name != "table" {
			continue
		}
		if string(f.Data) == got {
			return
		}
		if !*update {
			t.Fatalf("%s: table is\n%s\nwant\n%s", file, got, f.Data)
		}
		f.Data = []byte(got)
		if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("%s has no table", file)
}

func parseScript(t *testing.T, archive *txtar.Archive) (services []*v1.Service, slices []*discovery.EndpointSlice, node NodeInfo, holders Holders) {
	t.Helper()
	for line := range strings.Lines(string(archive.Comment)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch key {
		case "node":
			node.Name = value
		case "zone":
			node.Zone = value
		case "family":
			node.IPv4, node.IPv6 = value == "IPv4", value == "IPv6"
		case "ranges":
			holders.ServiceRanges = fields(t, value, netip.ParsePrefix)
		case "pods":
			holders.PodRanges = fields(t, value, netip.ParsePrefix)
		case "server":
			holders.APIServers = fields(t, value, netip.ParseAddrPort)
		case "host":
			holders.Host.Addresses = fields(t, value, netip.ParseAddr)
		case "hops":
			holders.Host.NextHops = fields(t, value, netip.ParseAddr)
		case "nodeports":
			holders.NodePortAddresses = fields(t, value, netip.ParsePrefix)
		case "port":
			port, err := strconv.ParseUint(value, 10, 16)
			if err != nil {
				t.Fatal(err)
			}
			holders.Ports = append(holders.Ports, ReservedPort{uint16(port), v1.ProtocolTCP, "the test"})
		case "late":
			name, addr, _ := strings.Cut(value, " ")
			holders.Late = append(holders.Late, NodeAddress{netip.MustParseAddr(addr), name})
		}
	}
	for _, f := range archive.Files {
		switch f.Name {
		case "services.yaml":
			services = parse[v1.Service](t, f.Data)
		case "slices.yaml":
			slices = parse[discovery.EndpointSlice](t, f.Data)
		case "nodes.yaml":
			for _, n := range parse[v1.Node](t, f.Data) {
				holders.Nodes = append(holders.Nodes, NodeHoldingOf(n))
			}
		}
	}
	return services, slices, node, holders
}

func fields[T any](t *testing.T, text string, parse func(string) (T, error)) (out []T) {
	t.Helper()
	for field := range strings.FieldsSeq(text) {
		one, err := parse(field)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, one)
	}
	return out
}

func parse[T any](t *testing.T, data []byte) (out []*T) {
	t.Helper()
	decoder := utilyaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(data)))
	defer decoder.Close()
	buffer := make([]byte, 1<<20)
	for {
		n, err := decoder.Read(buffer)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		object := new(T)
		if err := yaml.UnmarshalStrict(buffer[:n], object); err != nil {
			t.Fatal(fmt.Errorf("%w in %s", err, buffer[:n]))
		}
		out = append(out, object)
	}
}
