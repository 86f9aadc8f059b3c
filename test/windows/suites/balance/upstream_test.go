package balance

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"github.com/winkube/winkube/pkg/proxy"
	"github.com/winkube/winkube/pkg/proxy/hnslb"
	"github.com/winkube/winkube/test/windows/simulators/calls"
	hnssim "github.com/winkube/winkube/test/windows/simulators/hns"
)

var update = flag.Bool("update", false, "rewrite the differences in testdata; their explanations are kept")

const nodeIP, nodeMAC = "192.0.2.9", "02:00:00:00:00:09"

// TestLikeUpstream gives hnslb the Services of package differential's cases. It must leave the same state as upstream's kube-proxy.exe,
// except for the explained differences in testdata/NAME.diff.
func TestLikeUpstream(t *testing.T) {
	paths, err := filepath.Glob("../differential/testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".txtar")
		t.Run(name, func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got := differences(t, archive)
			golden := filepath.Join("testdata", name+".diff")
			want, err := os.ReadFile(golden)
			if err != nil && !*update {
				t.Fatal(err)
			}
			if *update {
				if err := os.WriteFile(golden, []byte(explain(got, string(want))), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			var plain strings.Builder
			for line := range strings.Lines(string(want)) {
				text, reason, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "  # ")
				if reason == "" && !strings.HasSuffix(text, ".state") {
					t.Errorf("%q is not explained", text)
				}
				fmt.Fprintln(&plain, text)
			}
			if plain.String() != got {
				t.Errorf("differences:\n%s\nwant:\n%s", got, &plain)
			}
		})
	}
}

// explain keeps the explanations of lines that still exist.
func explain(text, former string) string {
	reasons := map[string]string{}
	for line := range strings.Lines(former) {
		if text, reason, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  # "); ok {
			reasons[text] = "  # " + reason
		}
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		fmt.Fprintln(&b, line+reasons[line])
	}
	return b.String()
}

// differences plays one case. Lines with - are upstream's only, lines with + are ours only.
func differences(t *testing.T, archive *txtar.Archive) string {
	c := &client{HNS: hnssim.New(hnssim.Options{Build: 20348, Log: &calls.Log{}})}
	services, slicesOf := map[string]*v1.Service{}, map[string]*discoveryv1.EndpointSlice{}
	network, balancer := "", (*hnslb.Balancer)(nil)
	var out strings.Builder
	for _, f := range archive.Files {
		switch kind := f.Name[strings.LastIndexByte(f.Name, '.')+1:]; kind {
		case "setup":
			network = setUp(t, c, string(f.Data))
			balancer = hnslb.New(hnslb.Config{Client: c, Network: network, DSR: true, SourceVIP: netip.MustParseAddr("10.244.1.254"),
				Node: func() (netip.Addr, string) { return netip.MustParseAddr(nodeIP), nodeMAC }})
		case "yaml":
			apply(t, string(f.Data), services, slicesOf)
		case "state":
			table := proxy.Build(values(services), values(slicesOf), proxy.NodeInfo{Name: "win1", IPv4: true}, proxy.Holders{})
			if err := balancer.Sync(t.Context(), table, nil); err != nil {
				t.Fatal(err)
			}
			got := strings.ReplaceAll(strings.ReplaceAll(c.String(), nodeIP, "NODE_IP"), nodeMAC, "NODE_MAC")
			fmt.Fprintln(&out, f.Name)
			ours, theirs := objects(got), objects(string(f.Data))
			for _, line := range theirs {
				if !slices.Contains(ours, line) {
					fmt.Fprintln(&out, "- "+line)
				}
			}
			for _, line := range ours {
				if !slices.Contains(theirs, line) {
					fmt.Fprintln(&out, "+ "+line)
				}
			}
		}
	}
	return out.String()
}

// objects returns the objects of a state, one per line, without explanations.
func objects(state string) []string {
	var out []string
	for line := range strings.Lines(state) {
		line, _, _ = strings.Cut(strings.TrimSuffix(line, "\n"), "  # ")
		if strings.HasPrefix(line, "  on ") || strings.HasPrefix(line, "    policy") {
			out[len(out)-1] += " " + strings.TrimSpace(line)
			continue
		}
		out = append(out, strings.TrimSpace(line))
	}
	return out
}

// setUp makes the calls of a case's plugin and returns the network's name.
func setUp(t *testing.T, c *client, script string) string {
	handle := ""
	for line := range strings.Lines(script) {
		function, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		var args []string
		for arg := range strings.SplitSeq(rest, " | ") {
			args = append(args, strings.ReplaceAll(strings.ReplaceAll(arg, "$network", handle), "zero", none))
		}
		value, err := c.call(function, args...)
		if err != nil {
			t.Fatal(err)
		}
		if function == "HcnCreateNetwork" {
			handle = value
		}
	}
	networks, err := list[hnssim.Network](c, "Network", "")
	if err != nil {
		t.Fatal(err)
	}
	return networks[0].Name
}

func values[T any](of map[string]*T) []*T {
	var out []*T
	for _, one := range of {
		out = append(out, one)
	}
	return out
}

// apply adds, replaces or deletes ("deleted: true") the objects in a YAML text.
func apply(t *testing.T, text string, services map[string]*v1.Service, slicesOf map[string]*discoveryv1.EndpointSlice) {
	for document := range strings.SplitSeq(text, "\n---\n") {
		var head struct {
			Kind     string
			Deleted  bool
			Metadata struct{ Name string }
		}
		service, slice := &v1.Service{}, &discoveryv1.EndpointSlice{}
		for _, into := range []any{&head, service, slice} {
			if err := yaml.Unmarshal([]byte(document), into); err != nil {
				t.Fatal(err)
			}
		}
		switch {
		case head.Kind == "Service" && head.Deleted:
			delete(services, head.Metadata.Name)
		case head.Kind == "Service":
			services[head.Metadata.Name] = service
		case head.Kind == "EndpointSlice" && head.Deleted:
			delete(slicesOf, head.Metadata.Name)
		case head.Kind == "EndpointSlice":
			slicesOf[head.Metadata.Name] = slice
		}
	}
}
