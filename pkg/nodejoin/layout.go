package nodejoin

import (
	"path/filepath"
	"slices"

	"github.com/winkube/winkube/pkg/daemon"
)

// Layout contains the paths of a node's files.
type Layout struct {
	OS       string
	Programs string // directory of kubelet and proxy
	Config   string // directory of kubeconfigs and credentials
	Root     string // --root-dir of the kubelet
	Logs     []string
	Units    string // directory of systemd's units; Linux
	Vendor   string // directory of units from packages; Linux
	Defaults string // directory of the units' settings; Linux
	Package  string // file that exists if a deb or rpm installed the programs; Linux
	Packaged string // directory of the package's programs; Linux
	Logind   string // file by which the kubelet has logind wait for it; Linux
}

// LayoutOf returns the layout of a host. target is the programs' directory, on Windows also that of the configuration; root the kubelet's --root-dir.
// "" means the default of each.
func LayoutOf(system, target, root string) Layout {
	if system == "windows" {
		l := Layout{OS: system, Programs: `C:\k`, Root: `C:\var\lib\kubelet`, Logs: []string{`C:\var\log\kubelet`, `C:\var\log\kube-proxy`}}
		return l.at(target, root)
	}
	l := Layout{OS: system, Programs: "/usr/bin", Config: "/etc/kubernetes", Root: "/var/lib/kubelet", Units: "/etc/systemd/system", Vendor: "/usr/lib/systemd/system", Defaults: "/etc/default",
		Package: "/usr/share/winkube/package", Packaged: "/usr/bin", Logind: daemon.LogindConfig}
	return l.at(target, root)
}

func (l Layout) at(target, root string) Layout {
	if target != "" {
		l.Programs = target
	}
	if root != "" {
		l.Root = root
	}
	if l.OS == "windows" {
		l.Config = l.Programs
	}
	return l
}

func (l Layout) program(name string) string {
	if l.OS == "windows" {
		name += ".exe"
	}
	return filepath.Join(l.Programs, name)
}

// Kubelet is the path of the kubelet.
func (l Layout) Kubelet() string { return l.program("kubelet") }

// Proxy is the path of the proxy.
func (l Layout) Proxy() string { return l.program("proxy") }

// NodeConfig is the path of the node's kubeconfig.
func (l Layout) NodeConfig() string { return filepath.Join(l.Config, "kubelet.conf") }

func (l Layout) bootstrap() string   { return filepath.Join(l.Config, "bootstrap-kubelet.conf") }
func (l Layout) proxyConfig() string { return filepath.Join(l.Config, "proxy.conf") }
func (l Layout) proxyToken() string  { return filepath.Join(l.Config, "proxy.token") }
func (l Layout) certDir() string     { return filepath.Join(l.Root, "pki") }

func (l Layout) ca() string {
	if l.OS == "windows" {
		return filepath.Join(l.Config, "ca.crt")
	}
	return filepath.Join(l.Config, "pki", "ca.crt")
}

// directories are the directories to create before writing files, outer ones first.
func (l Layout) directories() []string {
	dirs := []string{l.Programs}
	if l.Config != l.Programs {
		dirs = append(dirs, l.Config)
	}
	if dir := filepath.Dir(l.ca()); !slices.Contains(dirs, dir) {
		dirs = append(dirs, dir)
	}
	return append(append(dirs, l.Root, l.certDir()), l.Logs...)
}

// packaged says whether a distribution package, which alone may remove them, has the programs. In another directory they are copies by join.
func (l Layout) packaged() bool {
	return l.Package != "" && there(l.Package) && (filepath.Clean(l.Programs) == l.Packaged || sameFile(l.Programs, l.Packaged))
}

// files are the files that join and the kubelet create, for leave. They include remains of upgrades next to the programs.
func (l Layout) files() []string {
	out := []string{l.NodeConfig(), l.bootstrap(), l.proxyConfig(), l.proxyToken(), l.ca()}
	if l.Logind != "" {
		out = append(out, l.Logind)
	}
	for _, path := range slices.Clone(out) {
		out = append(out, path+".new")
	}
	for _, program := range []string{l.Proxy(), l.Kubelet()} { // the running program is the kubelet: it comes last
		out = append(out, program+".new", program+".old", program+".back")
		if !l.packaged() {
			out = append(out, program)
		}
	}
	return out
}
