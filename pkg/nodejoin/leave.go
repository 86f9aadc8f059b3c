package nodejoin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/disk"
)

// LeaveParts are the dependencies of Leave. Each function is idempotent and returns what it removed.
type LeaveParts struct {
	Out      io.Writer
	Now      func() time.Time
	OS       string
	Elevated bool
	Services Services
	// Run runs the proxy, which cleans up after itself, with env in addition to this process's environment.
	Run func(env []string) command.Runner
	// Pods stops and removes all pods' containers of this host's engine.
	Pods func(ctx context.Context) (count int, err error)
	// Release has CNI plugins release what the removed pods had. The proxy still runs, because a plugin may reach the API server by its Service.
	// It is not called while pods may be left, whose addresses another host's pods would get.
	Release func(ctx context.Context) (names []string, err error)
	// Cgroups removes the pods' control groups and returns the name of the one above them, "" without any.
	Cgroups func(ctx context.Context) (name string, err error)
	// Network removes the pods' networks from engine and system.
	Network func(ctx context.Context) (names []string, err error)
	// Forwarding disables forwarding that only the kubelet enabled, and returns the adapters.
	Forwarding func() (adapters []string, err error)
	// Firewall removes the kubelet's rule.
	Firewall func(ctx context.Context) error
	// Unmount unmounts everything below a directory.
	Unmount func(dir string) (count int, err error)
	// RemoveLater moves the file of this running program aside, and has it deleted at the next boot.
	RemoveLater func(path string) (moved string, err error)
}

// Leave removes everything that Join and the programs created on this host: services, pods, networks, addresses, rules and files. It keeps logs and
// the data below the kubelet's directory unless removeData. Missing objects are not an error. It continues after an error and returns all of them.
func Leave(ctx context.Context, l Layout, removeData bool, parts LeaveParts) error {
	if !parts.Elevated {
		return map[bool]error{true: errors.New(`this needs administrator rights: open PowerShell with "Run as administrator" and run it again`),
			false: errors.New("this needs the rights of root: run it again with sudo")}[parts.OS == "windows"]
	}
	v := &leaver{LeaveParts: parts, layout: l, progress: progress{out: parts.Out, now: parts.Now, begin: parts.Now()}}
	node := nameOf(l.NodeConfig())
	var errs []error
	for _, step := range []func(context.Context) error{v.kubelet, v.pods, v.cgroups, v.proxy, v.mounts, v.network, v.forwarding, v.firewall} {
		errs = append(errs, step(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w; programs and files stay, so that this can be run again", oneLine(err))
	}
	if err := v.files(removeData); err != nil {
		return oneLine(err)
	}
	v.say("done; the Node object stays until: kubectl delete node %s", node)
	return nil
}

// nameOf is the Node of a kubeconfig, or a generic word.
func nameOf(path string) string {
	if name, err := commonName(path); err == nil && strings.HasPrefix(name, nodeUser) {
		return strings.TrimPrefix(name, nodeUser)
	}
	return "NAME"
}

type leaver struct {
	LeaveParts
	progress
	layout   Layout
	stopped  bool     // the kubelet, which would recreate pods and network
	released []string // by CNI plugins
}

func (v *leaver) kubelet(ctx context.Context) error {
	err := v.service(ctx, Service{Name: "kubelet", Program: v.layout.Kubelet()})
	v.stopped = err == nil
	return err
}

func (v *leaver) service(ctx context.Context, s Service) error {
	if v.OS == "windows" && !there(s.Program) {
		v.say("service %s: %s is not there", s.Name, s.Program)
		return nil
	}
	removed, err := v.Services.Remove(ctx, s)
	if err == nil {
		v.say("service %s: %s", s.Name, map[bool]string{true: "removed", false: "was not installed"}[removed])
	}
	return err
}

// proxy stops the proxy and has it remove its addresses, switch, load balancers, routes, port proxy and firewall rules. Its service has the flags and
// the environment that say where they are, so it is removed only when they are gone: a second run needs them, too.
func (v *leaver) proxy(ctx context.Context) error {
	s := Service{Name: "proxy", Program: v.layout.Proxy()}
	if !there(s.Program) {
		v.say("proxy: %s is not there", s.Program)
		return v.service(ctx, s)
	}
	flags, env, err := v.Services.Installed(s)
	if err != nil {
		return fmt.Errorf("service %s: cannot read its flags, which say what to clean up: %w", s.Name, err)
	}
	if err := v.Services.Stop(ctx, s); err != nil {
		return err
	}
	if _, err := v.Run(env).Run(ctx, nil, s.Program, append([]string{"--cleanup"}, placesIn(flags)...)...); err != nil {
		return err
	}
	v.say("proxy: addresses, switch, load balancers, routes and rules are removed")
	return v.service(ctx, s)
}

// places are the proxy's flags that say where it left something, and as which Node.
var places = []string{"config", "network-name", "network-mode", "connect-cgroup", "hostname-override"}

// placesIn returns the places among the flags of a service. It omits a configuration file that is gone, without which the proxy would not start.
func placesIn(flags []string) (out []string) {
	for i, flag := range flags {
		name, value, whole := strings.Cut(strings.TrimLeft(flag, "-"), "=")
		name = strings.ReplaceAll(name, "_", "-")
		if !strings.HasPrefix(flag, "--") || !slices.Contains(places, name) {
			continue
		}
		if !whole && i+1 < len(flags) { // --name value
			value = flags[i+1]
		}
		if name != "config" || there(value) {
			out = append(out, "--"+name+"="+value)
		}
	}
	return out
}

func (v *leaver) pods(ctx context.Context) error {
	count, err := v.Pods(ctx)
	if err != nil {
		return err
	}
	v.say("pods: %d removed", count)
	if v.stopped {
		v.released, err = v.Release(ctx)
	}
	return err
}

func (v *leaver) cgroups(ctx context.Context) error {
	name, err := v.Cgroups(ctx)
	if name != "" {
		v.say("control groups: %s removed", name)
	}
	return err
}

func (v *leaver) mounts(context.Context) error {
	count, err := v.Unmount(v.layout.Root)
	if count > 0 {
		v.say("mounts: %d removed", count)
	}
	return err
}

func (v *leaver) network(ctx context.Context) error {
	names, err := v.Network(ctx)
	names = append(v.released, names...)
	if err == nil && len(names) == 0 {
		v.say("networks: none were there")
	} else if err == nil {
		v.say("networks: removed %s", strings.Join(names, ", "))
	}
	return err
}

func (v *leaver) forwarding(context.Context) error {
	adapters, err := v.Forwarding()
	for _, name := range adapters {
		v.say("forwarding: off again on %q", name)
	}
	return err
}

func (v *leaver) firewall(ctx context.Context) error {
	if v.OS != "windows" {
		return nil
	}
	err := v.Firewall(ctx)
	if err == nil {
		v.say("firewall: no rule of the kubelet")
	}
	return err
}

// files removes the files that join wrote. It removes directories only if nothing else is in them.
func (v *leaver) files(removeData bool) error {
	own, _ := os.Executable()
	var gone []string
	var errs []error
	if dir := v.layout.certDir(); there(dir) {
		errs = append(errs, removeFlat(dir))
		gone = append(gone, dir)
	}
	if removeData {
		for _, tree := range append([]string{v.layout.Root}, v.layout.Logs...) {
			if there(tree) {
				errs = append(errs, disk.RemoveAll(tree))
				gone = append(gone, tree)
			}
		}
	}
	for _, path := range v.layout.files() {
		if !there(path) {
			continue
		}
		err := os.Remove(path)
		if err != nil && sameFile(path, own) {
			var moved string
			if moved, err = v.RemoveLater(path); err == nil {
				v.say("files: %s runs; it is %s now, which Windows removes with its next start", path, moved)
				continue
			}
		}
		errs = append(errs, err)
		gone = append(gone, path)
	}
	for _, dir := range slices.Backward(v.layout.directories()) {
		removeEmpty(dir)
	}
	if len(gone) == 0 {
		v.say("files: none were there")
	} else {
		v.say("files: removed %s", strings.Join(gone, ", "))
	}
	return errors.Join(errs...)
}

// removeFlat removes a directory that contains only files.
func removeFlat(dir string) error {
	entries, err := os.ReadDir(dir)
	errs := []error{err}
	for _, e := range entries {
		errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
	}
	return errors.Join(append(errs, os.Remove(dir))...)
}

// removeEmpty removes a directory if it is empty.
func removeEmpty(dir string) {
	if entries, err := os.ReadDir(dir); errors.Is(err, fs.ErrNotExist) || len(entries) > 0 {
		return
	}
	_ = os.Remove(dir)
}
