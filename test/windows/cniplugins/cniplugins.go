// Package cniplugins prepares a Wine prefix for mode cni on Windows: unmodified plugins of other projects, built from their modules, the
// configuration from the network guide, and the HNS network that another program would create.
//
//	hack/tools/plugins, docs/guides/network.md --> Install, Network --> kubelet.exe with Flags
package cniplugins

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/winkube/winkube/test/output"
	"github.com/winkube/winkube/test/windows/rig"
)

// Flags are the flags of kubelet.exe for this mode.
var Flags = []string{"--network-mode=cni", "--cni-conf-dir=" + confDir, "--cni-bin-dir=" + binDir}

const (
	confDir = `C:\k\cni\config`
	binDir  = `C:\k\cni\bin`
)

// outsider is another project's program: its package, and the module below hack/tools that pins its version.
type outsider struct {
	tools, module, path string
	test                bool // it is the package's test binary, with the tag integration
}

const plugins = "github.com/containernetworking/plugins"

var outsiders = map[string]outsider{
	"win-bridge.exe":  {tools: "plugins", module: plugins, path: plugins + "/plugins/main/windows/win-bridge"},
	"win-overlay.exe": {tools: "plugins", module: plugins, path: plugins + "/plugins/main/windows/win-overlay"},
	"host-local.exe":  {tools: "plugins", module: plugins, path: plugins + "/plugins/ipam/host-local"},
	"flanneld.exe":    {tools: "flannel", module: "github.com/flannel-io/flannel", path: "github.com/flannel-io/flannel"},
	"hcn.test.exe":    {tools: "hcsshim", module: "github.com/Microsoft/hcsshim", path: "github.com/Microsoft/hcsshim/hcn", test: true},
}

// Program returns the path of an outsider's program, building it if it is missing, and its version.
func Program(ctx context.Context, name string) (exe, version string, err error) {
	one, ok := outsiders[name]
	if !ok {
		return "", "", fmt.Errorf("%s is none of the programs of others", name)
	}
	root, err := rig.Root()
	if err != nil {
		return "", "", err
	}
	exe = filepath.Join(root, "_output/tools/windows", name)
	if _, err := os.Stat(exe); err != nil {
		module := filepath.Join(root, "hack/tools", one.tools)
		args := []string{"-n", "10", "go", "build", "-C", module, "-o", exe, one.path}
		if one.test {
			args = []string{"-n", "10", "go", "test", "-C", module, "-c", "-tags", "integration", "-o", exe, one.path}
		}
		build := exec.CommandContext(ctx, "nice", args...)
		build.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
		if said, err := output.Of(build); err != nil {
			return "", "", fmt.Errorf("cannot build %s: %w: %s", name, err, said)
		}
	}
	info, err := buildinfo.ReadFile(exe)
	if err != nil {
		return "", "", err
	}
	if info.Main.Path == one.module {
		return exe, info.Main.Version, nil
	}
	for _, d := range info.Deps {
		if d.Path == one.module {
			return exe, d.Version, nil
		}
	}
	return "", "", fmt.Errorf("%s is not of module %s: remove it", exe, one.module)
}

// Ranges are the pod ranges of a host and its cluster.
type Ranges struct {
	Pods           netip.Prefix // of this node
	Cluster        netip.Prefix // all pods
	Services, Node netip.Prefix
	Host           netip.Addr // this node's address
}

// Documented are the ranges in the guide.
var Documented = Ranges{Pods: netip.MustParsePrefix("10.244.1.0/24"), Cluster: netip.MustParsePrefix("10.244.0.0/16"),
	Services: netip.MustParsePrefix("10.96.0.0/12"), Node: netip.MustParsePrefix("10.1.0.0/24"),
	Host: netip.MustParseAddr("10.1.0.12")}

// addr returns the n-th address of a range.
func addr(p netip.Prefix, number int) string {
	a := p.Masked().Addr()
	for range number {
		a = a.Next()
	}
	return a.String()
}

// First returns the first pod address of the documented configuration.
func (r Ranges) First() string { return addr(r.Pods, 10) }

// Config returns the guide's configuration of a plugin, with r in place of the guide's ranges.
func Config(plugin string, r Ranges) (string, error) {
	root, err := rig.Root()
	if err != nil {
		return "", err
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/guides/network.md"))
	if err != nil {
		return "", err
	}
	var block strings.Builder
	for line := range strings.Lines(string(page) + "\n") {
		if code, ok := strings.CutPrefix(line, "    "); ok {
			block.WriteString(code)
			continue
		}
		text := block.String()
		block.Reset()
		if !strings.HasPrefix(text, "{") || !strings.Contains(text, `"type": "`+plugin+`"`) {
			continue
		}
		if !json.Valid([]byte(text)) {
			return "", fmt.Errorf("what the page shows for %s is no JSON: %s", plugin, text)
		}
		d := Documented
		return strings.NewReplacer(d.Pods.String(), r.Pods.String(), d.Cluster.String(), r.Cluster.String(), d.Services.String(), r.Services.String(),
			d.Node.String(), r.Node.String(), d.Host.String()+"/32", r.Host.String()+"/32", `"`+d.First()+`"`, `"`+r.First()+`"`, `"`+addr(d.Pods, 2)+`"`, `"`+addr(r.Pods, 2)+`"`).Replace(text), nil
	}
	return "", fmt.Errorf("the page shows no configuration for %s", plugin)
}

// Install installs a plugin and host-local into a prefix, with the documented configuration.
func Install(ctx context.Context, p *rig.Prefix, plugin string, r Ranges) error {
	config, err := Config(plugin, r)
	if err != nil {
		return err
	}
	for _, dir := range []string{binDir, confDir} {
		if err := p.Own(p.Path(dir)); err != nil {
			return err
		}
	}
	for _, name := range []string{plugin + ".exe", "host-local.exe"} {
		exe, _, err := Program(ctx, name)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(exe)
		if err == nil {
			err = os.WriteFile(filepath.Join(p.Path(binDir), name), data, 0o755)
		}
		if err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(p.Path(confDir), "10-pods.conflist"), []byte(config), 0o644)
}

// Network returns the HNS call by which flannel creates the network that a plugin attaches pods to: the function and its
// arguments.
func Network(plugin string, r Ranges) (function string, args []string) {
	pods, gateway := r.Pods.String(), addr(r.Pods, 1)
	if plugin == "win-overlay" { // flannel pkg/backend/vxlan device_windows.go
		return "HcnCreateNetwork", []string{"00000000-0000-0000-0000-000000000000", `{"Name":"flannel.4096","Type":"Overlay","Flags":8,"Ipams":[{"Type":"Static","Subnets":[` +
			`{"IpAddressPrefix":"` + pods + `","Policies":[{"Type":"VSID","Settings":{"IsolationId":4096}}],"Routes":[{"NextHop":"` + gateway +
			`","DestinationPrefix":"0.0.0.0/0"}]}]}],"SchemaVersion":{"Major":2,"Minor":0}}`}
	}
	return "HNSCall", []string{"POST", "/networks/", // flannel pkg/backend/hostgw hostgw_windows.go
		`{"Name":"cbr0","Type":"L2Bridge","Subnets":[{"AddressPrefix":"` + pods + `","GatewayAddress":"` + gateway + `"}]}`}
}
