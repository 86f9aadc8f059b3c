package plugins

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/simulators/sim"
)

// nodeAddress is the simulated host's own address.
var nodeAddress = netip.MustParseAddr("10.1.0.12")

// TestPlugins plays testdata/*.txtar on each of "builds" of Windows. "config" is one plugin's, "setup" calls of HNS, one a line. "steps" are:
//
//	run ID                 the engine runs a container
//	end ID                 it has ended
//	namespace              containerd makes one; NAMESPACE in later steps is its ID
//	ADD, CHECK, DEL ID NETNS
//
// "all" has what each step printed and what HNS has afterwards, unless that is as before; a build that differs has a part of its name.
func TestPlugins(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, path := range paths {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for field := range strings.FieldsSeq(part(archive, "builds")) {
			build, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			if len(rig.Wanted(build)) == 0 {
				continue
			}
			t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar")+"/"+field, func(t *testing.T) {
				got := play(t, archive, build)
				want := part(archive, "all")
				if own := part(archive, field); own != "" {
					want = own
				}
				if *update {
					set(archive, field, got)
					if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
						t.Fatal(err)
					}
				} else if got != want {
					t.Errorf("got\n%s\nwant\n%s", got, want)
				}
			})
		}
	}
}

func part(archive *txtar.Archive, name string) string {
	for _, f := range archive.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

// set stores the output of a build unless all builds print it: the output for "all" is that of the last build.
func set(archive *txtar.Archive, build, text string) {
	archive.Files = slices.DeleteFunc(archive.Files, func(f txtar.File) bool { return f.Name == build })
	if fields := strings.Fields(part(archive, "builds")); build == fields[len(fields)-1] {
		archive.Files = slices.DeleteFunc(archive.Files, func(f txtar.File) bool { return f.Name == "all" || string(f.Data) == text })
		build = "all"
	}
	archive.Files = append(archive.Files, txtar.File{Name: build, Data: []byte(text)})
}

// host is a simulated host with a plugin and its configuration.
type host struct {
	*testing.T
	*rig.Prefix
	world   *sim.World
	plugin  string // path
	config  map[string]any
	results map[string]json.RawMessage // of ADD, by container ID

	running   map[string]bool
	namespace string
}

func play(t *testing.T, archive *txtar.Archive, build int) string {
	w, p := simulated(t.Context(), t, build)
	h := &host{T: t, Prefix: p, world: w, results: map[string]json.RawMessage{}, running: map[string]bool{}}
	if err := json.Unmarshal([]byte(part(archive, "config")), &h.config); err != nil {
		t.Fatal(err)
	}
	kind := h.config["type"].(string) + ".exe"
	exe, version := program(t, kind)
	program(t, "host-local.exe")
	h.plugin = exe
	w.Address, w.Compute = nodeAddress, h.compute
	for line := range strings.Lines(part(archive, "setup")) {
		function, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if result, _, record := w.HNS.Call(function, strings.Split(rest, " | ")); result != 0 {
			t.Fatalf("%s: %#x %s", line, uint32(result), record)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s\n", kind, version)
	before := ""
	for line := range strings.Lines(part(archive, "steps")) {
		line = strings.TrimSpace(line)
		fmt.Fprintf(&b, "== %s\n%s", line, h.step(line))
		if state := w.HNS.String(); state != before {
			b.WriteString(state)
			before = state
		}
	}
	return b.String()
}

// compute simulates HCS with the running containers.
func (h *host) compute(id string) (properties string, found bool) {
	return fmt.Sprintf(`{"Id": %q, "SystemType": "Container", "Owner": "docker"}`, id), h.running[id]
}

// step executes a step and returns its output, in one format for all versions of CNI.
func (h *host) step(line string) string {
	words := strings.Fields(line)
	switch words[0] {
	case "run", "end":
		h.running[words[1]] = words[0] == "run"
		return ""
	case "namespace":
		const zero = "00000000-0000-0000-0000-000000000000"
		result, _, record := h.world.HNS.Call("HcnCreateNamespace", []string{zero, `{"Type":"Host","SchemaVersion":{"Major":2,"Minor":0}}`})
		if result != 0 {
			h.Fatalf("%s: %#x %s", line, uint32(result), record)
		}
		_, ids, _ := h.world.HNS.Call("HcnEnumerateNamespaces", []string{""})
		var all []string
		if err := json.Unmarshal([]byte(ids), &all); err != nil || len(all) == 0 {
			h.Fatalf("namespaces %q, %v", ids, err)
		}
		h.namespace = all[len(all)-1]
		return ""
	}
	return h.call(words[0], words[1], strings.ReplaceAll(words[2], "NAMESPACE", h.namespace))
}

// call runs the plugin with a CNI command.
func (h *host) call(verb, id, netns string) string {
	h.Helper()
	config := maps.Clone(h.config)
	if verb != "ADD" && h.results[id] != nil {
		config["prevResult"] = h.results[id]
	}
	stdin, err := json.Marshal(config)
	if err != nil {
		h.Fatal(err)
	}
	cmd := h.Command(h.Context(), h.plugin)
	if netns == "-" {
		netns = ""
	}
	cmd.Env = append(cmd.Env, "CNI_COMMAND="+verb, "CNI_CONTAINERID="+id, "CNI_NETNS="+netns, "CNI_IFNAME=eth0", "CNI_PATH="+rig.WindowsPath(filepath.Dir(h.plugin)),
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web")
	cmd.Stdin = bytes.NewReader(stdin)
	said, err := h.Finish(cmd)
	printed := bytes.TrimSpace([]byte(said.Stdout))
	var failed struct {
		Code int
		Msg  string
	}
	if err != nil {
		if json.Unmarshal(printed, &failed) != nil || failed.Msg == "" {
			h.Fatalf("%s %s: %v: %s", verb, id, err, said)
		}
		return fmt.Sprintf("error %d: %s\n", failed.Code, h.blank(failed.Msg))
	}
	if verb == "ADD" {
		h.results[id] = printed
	}
	return h.blank(short(printed))
}

// short returns a CNI result on one line.
func short(printed []byte) string {
	var result struct {
		CNIVersion string
		Interfaces []struct{ Name, Mac string }
		IPs        []struct{ Address, Gateway string }
		DNS        struct{ Nameservers, Search []string }
	}
	if len(printed) == 0 || json.Unmarshal(printed, &result) != nil {
		return string(printed)
	}
	var b strings.Builder
	for _, ip := range result.IPs {
		fmt.Fprintf(&b, "address %s gateway %s ", ip.Address, ip.Gateway)
	}
	for _, i := range result.Interfaces {
		fmt.Fprintf(&b, "endpoint %s mac %s ", i.Name, i.Mac)
	}
	fmt.Fprintf(&b, "dns %s search %s\n", strings.Join(result.DNS.Nameservers, ","), strings.Join(result.DNS.Search, ","))
	return b.String()
}

var guid = regexp.MustCompile(`[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}`)

// blank removes what varies between runs, and between versions of HNS: the case of IDs.
func (h *host) blank(text string) string {
	text = guid.ReplaceAllStringFunc(text, strings.ToLower)
	if h.namespace != "" {
		text = strings.ReplaceAll(text, h.namespace, "NAMESPACE")
	}
	return text
}
