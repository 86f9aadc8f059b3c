package nodejoin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/command/commandtest"
	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/nodejoin"
	"github.com/winkube/winkube/test/apiserver"
)

const goodToken = "abcdef.fedcba9876543210"

// bare is a bare server of one system, in a directory, next to a cluster.
type bare struct {
	*testing.T
	*apiserver.Joinable
	cfg      nodejoin.Config
	parts    nodejoin.Parts
	said     bytes.Buffer
	services map[string][]string // flags of installed services, by name
	env      []string            // of the Windows service kube-proxy
	cleanups []string            // "ENV ...: ARGS ..." of the proxy's runs with --cleanup
	left     []string            // environment of the program that runs next
	starts   map[string]int
	engine   docker.Info
	down     error // of the engine
	silent   bool  // the kubelet does not register
	notReady bool
	register func() // instead of creating the Node in memory; nil: that
}

func newBare(t *testing.T, system string) *bare {
	t.Helper()
	server, err := apiserver.New(apiserver.JSON)
	if err != nil {
		t.Fatal(err)
	}
	b := &bare{T: t, Joinable: apiserver.NewJoinable(t, server), services: map[string][]string{}, starts: map[string]int{}, engine: docker.Info{Version: "20.10.24", OS: system}}
	if err := b.AddToken(goodToken); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	layout := nodejoin.Layout{OS: system, Programs: filepath.Join(dir, "k"), Config: filepath.Join(dir, "etc"), Root: filepath.Join(dir, "kubelet"), Logs: []string{filepath.Join(dir, "log")},
		Units: filepath.Join(dir, "units"), Defaults: filepath.Join(dir, "default")}
	if system == "windows" {
		layout.Config = layout.Programs
	}
	from := filepath.Join(dir, "from")
	for _, d := range []string{from, layout.Units, layout.Defaults} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, program := range []string{layout.Kubelet(), layout.Proxy()} {
		if err := os.WriteFile(filepath.Join(from, filepath.Base(program)), []byte("1"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	facts := host.Facts{OS: system, OSImage: "Windows Server 2022 Datacenter", WindowsBuild: 20348, Hostname: "win1", SystemUUID: "AAAA", MachineID: "m1"}
	b.cfg = nodejoin.Config{Server: b.Address(), Token: goodToken, Hashes: []string{b.Hash()}, Programs: from, Layout: layout, Patience: time.Minute}
	b.parts = nodejoin.Parts{Out: &b.said, Now: time.Now, Facts: facts, Elevated: true, Engine: func(context.Context) (docker.Info, error) { return b.engine, b.down },
		Services: nodejoin.NewServices(layout, b.host(), b.read), CheckKubelet: func() error { return nil }, CheckProxy: func(context.Context, []string) error { return nil },
		Runs: func(context.Context, string) error { return nil }, PortFree: func() error { return nil },
		ProtectDir: daemon.ProtectDir, CheckOwner: daemon.CheckOwner, CopyProgram: daemon.CopyProgram,
		Doctor: func(context.Context, string) error { fmt.Fprintln(&b.said, "doctor: ok"); return nil }}
	return b
}

// host simulates the service manager of either system: our programs' `service` commands, and systemctl.
func (b *bare) host() *commandtest.Runner {
	run := commandtest.New()
	for name, program := range map[string]string{"kubelet": b.cfg.Layout.Kubelet(), "proxy": b.cfg.Layout.Proxy()} {
		run.Install(program, func(_ []byte, args []string) ([]byte, error) {
			if !there(program) {
				return nil, command.ErrNotFound
			}
			return b.program(name, args)
		})
	}
	run.Install("systemctl", func(_ []byte, args []string) ([]byte, error) { return nil, b.systemctl(args) })
	return run
}

func (b *bare) program(name string, args []string) ([]byte, error) {
	have, installed := b.services[name]
	switch {
	case args[0] == "--cleanup":
		if b.starts[name] > 0 {
			b.Errorf("%s cleans up while its service runs", name)
		}
		b.cleanups = append(b.cleanups, fmt.Sprintf("%q: %s", b.left, strings.Join(args, " ")))
		return nil, nil
	case args[1] == "install" && installed && slices.Equal(have, args[2:]):
		return []byte(name + ": is already installed with these settings"), nil
	case args[1] == "install":
		b.services[name] = slices.Clone(args[2:])
	case args[1] == "start":
		if b.starts[name] > 0 {
			return []byte("runs already"), nil
		}
		b.start(name)
	case args[1] == "stop":
		b.starts[name] = 0
	case args[1] == "uninstall" && !installed:
		return []byte("is not installed"), nil
	case args[1] == "uninstall":
		delete(b.services, name)
		b.starts[name] = 0
	}
	return []byte("done"), nil
}

// read simulates the service manager's record of a Windows service.
func (b *bare) read(name string) (flags, env []string, err error) {
	if name == "kube-proxy" && b.services["proxy"] != nil {
		env = b.env
	}
	return b.services[map[string]string{"kubelet": "kubelet", "kube-proxy": "proxy"}[name]], env, nil
}

func (b *bare) systemctl(args []string) error {
	name := args[len(args)-1]
	switch args[0] {
	case "is-active":
		if b.starts[name] == 0 {
			return commandtest.Exit(3, "inactive")
		}
	case "start", "restart":
		text, err := os.ReadFile(filepath.Join(b.cfg.Layout.Defaults, name))
		if err != nil {
			return commandtest.Exit(1, err.Error())
		}
		b.services[name] = strings.Fields(strings.Trim(regexp.MustCompile(`=(".*")`).FindStringSubmatch(string(text))[1], `"`))
		b.start(name)
	case "stop", "disable":
		b.starts[name] = 0
		delete(b.services, name)
	}
	return nil
}

// start simulates the kubelet: it registers the Node.
func (b *bare) start(name string) {
	b.starts[name]++
	if name == "kubelet" && b.register != nil {
		b.register()
	}
	if name != "kubelet" || b.silent {
		return
	}
	if _, ok := b.Get("/api/v1/nodes/win1").(*v1.Node); ok {
		return
	}
	if !there(b.cfg.Layout.NodeConfig()) || there(b.file("bootstrap-kubelet.conf")) {
		b.Error("the kubelet starts without its kubeconfig, or with the token beside it")
	}
	b.node(func(*v1.Node) {})
}

// node creates the Node object.
func (b *bare) node(change func(*v1.Node)) {
	n := &v1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "win1", UID: "uid-1"},
		Status: v1.NodeStatus{NodeInfo: v1.NodeSystemInfo{SystemUUID: "aaaa", MachineID: "m1"}, Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady"}}}}
	if b.notReady {
		n.Status.Conditions[0] = v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionFalse, Reason: "KubeletNotReady", Message: "no network"}
	}
	change(n)
	if err := b.Set(n); err != nil {
		b.Fatal(err)
	}
}

func (b *bare) join() error { return nodejoin.Join(b.Context(), b.cfg, b.parts) }

// tree lists all files and directories with their visible properties, except the directory of the installation files.
func (b *bare) tree() string {
	b.Helper()
	root := filepath.Dir(b.cfg.Layout.Programs)
	var out []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		if d.IsDir() || strings.HasPrefix(name, "from") {
			return nil
		}
		info, err := os.Lstat(path)
		if err != nil {
			return err
		}
		out = append(out, fmt.Sprintf("%s %s %d", filepath.ToSlash(name), info.Mode(), info.ModTime().UnixNano()))
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	return strings.Join(out, "\n")
}

// file returns the path of a configuration file.
func (b *bare) file(name string) string { return filepath.Join(b.cfg.Layout.Config, name) }

func there(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// names returns the names in a tree.
func names(tree string) string {
	return regexp.MustCompile(`(?m)^(\S+) \S+ \d+$`).ReplaceAllString(regexp.MustCompile(`kubelet-client-\d\S+\.pem`).ReplaceAllString(tree, "kubelet-client-TIME.pem"), "$1")
}

// leaving returns the parts of Leave on this host.
func (b *bare) leaving(run *commandtest.Runner) nodejoin.LeaveParts {
	return nodejoin.LeaveParts{Out: &b.said, Now: time.Now, OS: b.cfg.Layout.OS, Elevated: true, Services: nodejoin.NewServices(b.cfg.Layout, run, b.read),
		Run:     func(env []string) command.Runner { b.left = env; return run },
		Pods:    func(context.Context) (int, error) { return 2, nil },
		Release: func(context.Context) ([]string, error) { return nil, nil },
		Cgroups: func(context.Context) (string, error) {
			return map[bool]string{true: "/kubepods"}[b.cfg.Layout.OS == "linux"], nil
		},
		Network:     func(context.Context) ([]string, error) { return []string{"network winkube of the engine"}, nil },
		Forwarding:  func() ([]string, error) { return []string{"Ethernet"}, nil },
		Firewall:    func(context.Context) error { return nil },
		Unmount:     func(string) (int, error) { return 0, nil },
		RemoveLater: func(string) (string, error) { return "", errors.New("not this program") },
	}
}
