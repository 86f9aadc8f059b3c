package repo_test

import (
	"path"
	"slices"
	"strings"
	"testing"
)

// lines has each package's row in the architecture: imports only go to lower rows.
var lines = map[string]int{
	"command": 0, "host": 0, "daemon": 0, "filewatch": 0, "wake": 0,
	"clientset": 1, "hns": 1, "vxlan": 1, "hcs": 1, "cgroup": 1, "netsh": 1, "iptables": 1, "cni": 1, "report": 1, "disk": 1, "podspec": 1, "portblocks": 1,
	"kubeclient": 2, "learn": 2, "pod": 2, "admit": 2, "probe": 2, "proxy": 2, "record": 2, "csi": 2, "plugins": 2, "otherproxy": 2,
	"docker": 3, "volume": 3, "credential": 3, "podcgroup": 3, "network": 3, "hostport": 3, "routes": 3, "proxy/relay": 3, "proxy/connect": 3, "proxy/packets": 3, "proxy/portproxy": 3, "proxy/hnslb": 3, "csi/drivers": 3,
	"node": 4, "stats": 4, "guard": 4, "shutdown": 4, "cri": 4, "server": 4, "doctor": 4, "migrate": 4,
	"kubelet": 5, "kubeproxy": 5, "nodejoin": 5,
}

// peers are allowed imports within one row. Row 3 has none and must not get any.
var peers = map[string]string{
	"admit -> pod":      "it implements pod.Admitter",
	"daemon -> command": "an upgrade asks the installed program for its version",
	"filewatch -> wake": "a change wakes its owner as all news here do",
}

// line returns the row of one of our packages. Test doubles (dockertest, podtest) without a row have their parent's.
func line(dir string) (name string, n int, ok bool) {
	name = strings.TrimPrefix(dir, "pkg/")
	if n, ok = lines[name]; ok {
		return name, n, true
	}
	if double(dir) {
		name = path.Dir(name)
	}
	for ; name != "."; name = path.Dir(name) {
		if n, ok = lines[name]; ok {
			return name, n, true
		}
	}
	return "", 0, false
}

// double reports whether dir is a package of test doubles: only tests may import it.
func double(dir string) bool {
	return under(dir, "pkg") && strings.HasSuffix(path.Base(dir), "test")
}

// misdirected returns what is wrong with from importing to, "" if nothing.
func misdirected(from, to string, fromTest bool) string {
	switch {
	case from == to:
		return ""
	case from == "hack/release" && under(to, "cmd"):
		return "" // it generates the commands' man pages
	case under(to, "cmd", "hack", "build") && !under(from, to, path.Dir(to)):
		return "no package imports programs"
	case under(to, "test") && !under(from, "test", "hack"):
		return "only test/ and hack/ import test/"
	case double(to) && !fromTest && !double(from) && !under(from, "test", "hack"):
		return "only tests import test doubles"
	case !under(from, "pkg") || !under(to, "pkg"):
		return ""
	}
	fromName, fromLine, ok := line(from)
	if !ok {
		return "" // TestEveryPackageHasALine reports it
	}
	toName, toLine, ok := line(to)
	switch {
	case !ok, fromName == toName, toLine < fromLine:
		return ""
	case fromLine == toLine && fromLine == 3:
		return "packages of line 3 never import each other"
	case fromLine == toLine && peers[fromName+" -> "+toName] != "":
		return ""
	}
	return "imports run to lower lines only"
}

func TestImportDirection(t *testing.T) {
	for _, s := range load(t) {
		for _, imported := range s.imports {
			to, ours := strings.CutPrefix(imported, module)
			if !ours {
				continue
			}
			if why := misdirected(s.dir, to, s.test); why != "" {
				t.Errorf("%s imports %s: %s", s.path, to, why)
			}
		}
	}
}

func TestMisdirected(t *testing.T) {
	for _, test := range []struct {
		from, to string
		test     bool
		want     string
	}{
		{"pkg/server", "pkg/pod", false, ""},
		{"pkg/admit", "pkg/pod", false, ""},
		{"pkg/probe", "pkg/pod", false, "imports run to lower lines only"},
		{"pkg/kubeclient", "pkg/pod", false, "imports run to lower lines only"},
		{"pkg/pod", "pkg/admit", false, "imports run to lower lines only"},
		{"pkg/pod", "pkg/docker", false, "imports run to lower lines only"},
		{"pkg/docker", "pkg/volume", false, "packages of line 3 never import each other"},
		{"pkg/proxy/relay", "pkg/routes", false, "packages of line 3 never import each other"},
		{"pkg/proxy/relay", "pkg/proxy", false, ""},
		{"pkg/proxy", "pkg/proxy/relay", false, "imports run to lower lines only"},
		{"pkg/hns/hnstest", "pkg/hns", false, ""},
		{"pkg/pod", "pkg/pod/podtest", true, ""},
		{"pkg/pod", "pkg/pod/podtest", false, "only tests import test doubles"},
		{"pkg/kubelet", "pkg/server", false, ""},
		{"pkg/server", "pkg/kubelet", false, "imports run to lower lines only"},
		{"cmd/kubelet", "cmd/kubelet/app", false, ""},
		{"cmd/kubelet/app", "cmd/kube-proxy/app", false, "no package imports programs"},
		{"pkg/kubelet", "cmd/kubelet/app", false, "no package imports programs"},
		{"pkg/kubelet", "test/lab", true, "only test/ and hack/ import test/"},
		{"test/e2e", "test/lab", true, ""},
		{"hack/release", "cmd/kubelet/app", false, ""},
		{"hack/cluster", "cmd/kubelet/app", false, "no package imports programs"},
	} {
		if got := misdirected(test.from, test.to, test.test); got != test.want {
			t.Errorf("%s -> %s: got %q, want %q", test.from, test.to, got, test.want)
		}
	}
}

func TestEveryPackageHasALine(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range load(t) {
		if _, _, ok := line(s.dir); under(s.dir, "pkg") && !ok && !seen[s.dir] {
			seen[s.dir] = true
			t.Errorf("%s is on no line of the architecture: add it in this file and in docs/design/architecture.md", s.dir)
		}
	}
}

// confined are imports that are only allowed in one place.
var confined = []struct {
	prefix string
	roots  []string
	suffix string // required suffix of the files there
	tests  bool   // test files elsewhere may use it too
}{
	{prefix: "github.com/docker/docker/", roots: []string{"pkg/docker", "test", "hack"}},
	{prefix: "github.com/docker/go-connections/", roots: []string{"pkg/docker", "test", "hack"}},
	{prefix: "github.com/Microsoft/hcsshim", roots: []string{"pkg/hns", "pkg/hcs"}, suffix: "windows"},
	{prefix: "github.com/fsnotify/fsnotify", roots: []string{"pkg/filewatch"}, tests: true},
	{prefix: "github.com/godbus/dbus", roots: []string{"pkg/daemon", "pkg/cgroup", "pkg/network/firewalld"}, suffix: "linux", tests: true},
	{prefix: "github.com/coreos/go-systemd/", roots: []string{"pkg/cgroup"}, suffix: "linux"},
	{prefix: "os/exec", roots: []string{"pkg/command", "hack", "test"}},
	{prefix: "github.com/vishvananda/", roots: []string{"pkg", "test", "hack"}, suffix: "linux", tests: true},
	{prefix: "golang.zx2c4.com/wireguard/windows", roots: []string{"pkg"}, suffix: "windows"},
	{prefix: "golang.org/x/sys/windows", roots: []string{"pkg", "cmd", "test"}, suffix: "windows"},
	{prefix: "golang.org/x/sys/unix", roots: []string{"pkg", "cmd", "test", "hack"}, suffix: "linux", tests: true},
	{prefix: "testing", roots: []string{"test"}, tests: true},
	{prefix: "io/ioutil"},
	{prefix: "k8s.io/kubernetes/"},
	{prefix: "k8s.io/apiserver/"},
	// These bring client-go's clientset with all kinds of the API: docs/design/adr/0037-a-clientset-of-used-kinds.md.
	{prefix: "k8s.io/client-go/kubernetes", roots: []string{"test", "hack"}, tests: true},
	{prefix: "k8s.io/client-go/informers", roots: []string{"test", "hack"}, tests: true},
	{prefix: "k8s.io/client-go/discovery", roots: []string{"test", "hack"}, tests: true},
	{prefix: "k8s.io/client-go/util/certificate", roots: []string{"test", "hack"}},
	{prefix: "k8s.io/component-helpers/apimachinery/lease"},
}

func TestConfinedImports(t *testing.T) {
	for _, s := range load(t) {
		for _, imported := range s.imports {
			for _, rule := range confined {
				if imported != rule.prefix && !strings.HasPrefix(imported, strings.TrimSuffix(rule.prefix, "/")+"/") {
					continue
				}
				// Only pkg and cmd are built for Windows, so files elsewhere need no suffix.
				suffixed := rule.suffix == "" || !slices.ContainsFunc(s.systems, func(system string) bool { return system != rule.suffix }) || under(s.dir, "test", "hack")
				switch {
				case rule.tests && s.test, double(s.dir) && rule.tests:
				case !under(s.dir, rule.roots...):
					t.Errorf("%s imports %s, which only %q may import", s.path, imported, rule.roots)
				case !suffixed:
					t.Errorf("%s imports %s, which only files *_%s.go may import", s.path, imported, rule.suffix)
				}
			}
		}
	}
}
