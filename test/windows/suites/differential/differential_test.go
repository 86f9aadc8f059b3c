package differential

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/winkube/winkube/pkg/proxy/proxytest"
	"github.com/winkube/winkube/test/output"
	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/simulators/sim"
)

var update = flag.Bool("update", false, "rewrite the golden states; their explanations are kept")

// TestUpstream plays testdata/*.txtar on each of the Windows builds in "builds". "setup" is what a CNI plugin did in HNS (one call per line),
// "config" is kube-proxy's configuration. Pairs follow: "N.yaml" (objects that change) and "N.state" (HNS's state afterwards). NODE_IP and NODE_MAC
// are placeholders for this machine's addresses, FREE_ADDRESS for an address and port on loopback. "on BUILD" lists lines that differ on that
// build, as "line" => "line".
func TestUpstream(t *testing.T) {
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
			t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar")+"/"+field, func(t *testing.T) {
				if !*update { // -update changes the archive
					t.Parallel() // kube-proxy mostly waits
				}
				play(t, path, archive, build)
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

// otherwise replaces lines of a state by those of one build, with their explanations.
func otherwise(state, differences string) string {
	for line := range strings.Lines(differences) {
		here, there, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " => ")
		var lines []string
		for have := range strings.Lines(state) {
			if strings.HasPrefix(have, here+"  # ") {
				have = there + "\n"
			}
			lines = append(lines, have)
		}
		state = strings.Join(lines, "")
	}
	return state
}

func play(t *testing.T, path string, archive *txtar.Archive, build int) {
	if *update && part(archive, fmt.Sprintf("on %d", build)) != "" {
		t.Skip("the states are written by the other builds")
	}
	p := rig.Test(t, build)
	exe := kubeProxy(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	node := thisNode(t)
	w := sim.New(build)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.Serve(l)
	t.Cleanup(w.Close)
	if err := w.Install(ctx, p, l.Addr()); err != nil {
		t.Fatal(err)
	}
	setUp(t, w, part(archive, "setup"))
	server := newAPI(t)
	server.apply(t, node.fill(part(archive, "1.yaml")))
	config := node.fill(part(archive, "config"))
	for strings.Contains(config, "FREE_ADDRESS") {
		config = strings.Replace(config, "FREE_ADDRESS", fmt.Sprintf("127.0.0.1:%d", proxytest.FreePort(t)), 1)
	}
	ctx = startProxy(ctx, t, p, exe, server.URL, config)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("calls:\n%s", w.Log)
		}
	})

	for i := range archive.Files {
		name, ok := strings.CutSuffix(archive.Files[i].Name, ".state")
		if !ok {
			continue
		}
		if name != "1" {
			server.apply(t, node.fill(part(archive, name+".yaml")))
		}
		want := otherwise(string(archive.Files[i].Data), part(archive, fmt.Sprintf("on %d", build)))
		if *update {
			quiet(ctx, t, w)
			archive.Files[i].Data = []byte(explain(node.blank(w.HNS.String()), want))
			continue
		}
		check(ctx, t, w, node, name, want)
	}
	if unknown := w.Log.Unknown(); len(unknown) > 0 {
		t.Errorf("the simulators were asked for what they do not know: %v", unknown)
	}
	if w.HNS.OpenHandles() > 2 { // a call may be in progress
		t.Errorf("%d handles are open", w.HNS.OpenHandles())
	}
	if *update {
		if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// check waits until HNS has the state, and requires an explanation for each line.
func check(ctx context.Context, t *testing.T, w *sim.World, node machine, name, want string) {
	t.Helper()
	var lines []string
	for line := range strings.Lines(want) {
		text, reason, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  # ")
		if !ok || reason == "" {
			t.Errorf("%s.state: %q has no explanation", name, text)
		}
		lines = append(lines, text)
	}
	wanted := strings.Join(lines, "\n") + "\n"
	ctx, cancel := context.WithTimeout(ctx, 8*time.Minute)
	defer cancel()
	if err := w.Log.Wait(ctx, func() bool { return node.blank(w.HNS.String()) == wanted }); err != nil {
		t.Errorf("state %s is not reached; HNS has:\n%s\nwanted:\n%s", name, node.blank(w.HNS.String()), wanted)
	}
}

// quiet waits until no call has arrived for a while: with -update there is no state to wait for.
func quiet(ctx context.Context, t *testing.T, w *sim.World) {
	t.Helper()
	for before := -1; ; {
		now := len(w.Log.Calls("HcnCreateEndpoint", "HcnCreateLoadBalancer", "HcnDeleteEndpoint", "HcnDeleteLoadBalancer"))
		if now == before && now > 0 {
			return
		}
		before = now
		select {
		case <-time.After(25 * time.Second):
		case <-ctx.Done():
			t.Fatal(context.Cause(ctx))
		}
	}
}

// explain moves the explanations of the former state to the lines that still exist.
func explain(state, former string) string {
	reasons := map[string]string{}
	for line := range strings.Lines(former) {
		if text, reason, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  # "); ok {
			reasons[text] = "  # " + reason
		}
	}
	var b strings.Builder
	for line := range strings.Lines(state) {
		line = strings.TrimSuffix(line, "\n")
		fmt.Fprintln(&b, line+reasons[line])
	}
	return b.String()
}

// setUp makes HNS calls; $network in an argument is the first network's handle.
func setUp(t *testing.T, w *sim.World, text string) {
	t.Helper()
	network := ""
	for line := range strings.Lines(text) {
		function, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		args := strings.Split(rest, " | ")
		for i := range args {
			args[i] = strings.ReplaceAll(strings.ReplaceAll(args[i], "$network", network), "zero", "00000000-0000-0000-0000-000000000000")
		}
		result, value, record := w.HNS.Call(function, args)
		if result != 0 {
			t.Fatalf("%s: %#x %s", line, uint32(result), record)
		}
		if function == "HcnCreateNetwork" {
			network = value
		} else if function == "HcnCreateEndpoint" {
			w.HNS.Call("HcnCloseEndpoint", []string{value})
		}
	}
	w.HNS.Call("HcnCloseNetwork", []string{network})
	w.Log.Reset()
}

// machine is this machine as kube-proxy sees it on an overlay network: it needs the MAC address of the node's address.
type machine struct{ ip, mac string }

func thisNode(t *testing.T) machine {
	ip, mac := rig.HostAddress(t)
	return machine{ip, mac}
}

func (m machine) fill(text string) string { return strings.ReplaceAll(text, "NODE_IP", m.ip) }

func (m machine) blank(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, m.ip, "NODE_IP"), m.mac, "NODE_MAC")
}

// kubeProxy returns upstream's program, building it if it is missing.
func kubeProxy(t *testing.T) string {
	t.Helper()
	root, err := rig.Root()
	if err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(root, "_output/tools/windows/kube-proxy.exe")
	if _, err := os.Stat(exe); err == nil {
		return exe
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-C", filepath.Join(root, "hack/tools/kubernetes"), "-o", exe, "k8s.io/kubernetes/cmd/kube-proxy")
	build.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if said, err := output.Of(build); err != nil {
		t.Fatalf("cannot build kube-proxy.exe: %v: %s", err, said)
	}
	return exe
}

// startProxy starts kube-proxy and stops it when the test ends. The returned context ends when the program does.
func startProxy(ctx context.Context, t *testing.T, p *rig.Prefix, exe, api, config string) context.Context {
	t.Helper()
	kubeconfig := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: '" + api + "'}}]\n" +
		"contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
	for name, text := range map[string]string{`C:\kubeconfig`: kubeconfig, `C:\config`: config} {
		if err := os.WriteFile(p.Path(name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var output bytes.Buffer
	cmd := p.Command(ctx, exe, `--config=C:\config`, "--v=4")
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, ended := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		ended(fmt.Errorf("kube-proxy ended: %w", cmd.Wait()))
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
		if t.Failed() {
			t.Logf("kube-proxy printed:\n%s", &output)
		}
	})
	return ctx
}
