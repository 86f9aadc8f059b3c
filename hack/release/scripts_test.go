package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/output"
)

// systemctl is a fake: active/UNIT exists if a unit runs, show/UNIT holds its ExecStart, broken/UNIT makes it fail after a start. asked records the
// requests that change something.
const systemctl = `#!/bin/sh
top=$(dirname "$0")/..
for unit; do :; done
case "$1" in
show) if [ -e "$top/show/$unit" ]; then echo "ExecStart={ path=$(cut -d ' ' -f 1 "$top/show/$unit") ; argv[]=$(cat "$top/show/$unit") ; ignore_errors=no }"; fi ;;
is-active) test -e "$top/active/$unit" ;;
try-restart) echo "$@" >>"$top/asked"; if [ -e "$top/broken/$unit" ]; then rm -f "$top/active/$unit"; fi ;;
*) echo "$@" >>"$top/asked" ;;
esac
`

// paths matches absolute paths in the packages' scripts.
var paths = regexp.MustCompile(`(^|[^\w/*])/(etc|usr|var|run|proc)/`)

// host is a directory that the packages' scripts use as /.
type host struct {
	*testing.T
	root string
}

func newHost(t *testing.T) host {
	t.Helper()
	h := host{t, t.TempDir()}
	h.write("bin/systemctl", systemctl)
	h.write("bin/deb-systemd-invoke", "#!/bin/sh\nexec systemctl \"$@\"\n")
	h.write("bin/sleep", "#!/bin/sh\n")
	h.write("run/systemd/system/x", "")
	h.write("proc/self/mounts", "proc /proc proc rw 0 0\n")
	h.write("proc/1/comm", "systemd\n")
	h.write("proc/1/mountinfo", "22 28 0:20 / /proc rw - proc proc rw\n")
	return h
}

// write writes a file. @ before a path in the text is replaced by the root.
func (h host) write(name, text string) {
	h.Helper()
	path := filepath.Join(h.root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(strings.ReplaceAll(text, "@/", h.root+"/")), 0o755)); err != nil {
		h.Fatal(err)
	}
}

// run runs a script of build/package. It returns its output and its systemctl requests.
func (h host) run(script string, args ...string) (says, asked string) {
	h.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "build", "package", script))
	if err != nil {
		h.Fatal(err)
	}
	moved := strings.ReplaceAll(paths.ReplaceAllString(string(text), "${1}@/$2/"), "@/", h.root+"/")
	if left := paths.FindString(strings.ReplaceAll(moved, "#!/bin/sh", "")); left != "" {
		h.Fatalf("%s: %q is not in the test's directory", script, left)
	}
	h.write("script", "")
	file := filepath.Join(h.root, "script")
	if err := os.WriteFile(file, []byte(moved), 0o755); err != nil {
		h.Fatal(err)
	}
	command := exec.CommandContext(h.Context(), "sh", append([]string{file}, args...)...)
	command.Env = []string{"PATH=" + filepath.Join(h.root, "bin") + ":/usr/bin:/bin", "LC_ALL=C"}
	got, err := output.Of(command)
	if err != nil {
		h.Fatalf("%s %v: %v\n%s%s", script, args, err, got.Stdout, got.Stderr)
	}
	told, err := os.ReadFile(filepath.Join(h.root, "asked"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(h.root, "asked")); err != nil {
		h.Fatal(err)
	}
	return got.Stdout + got.Stderr, string(told)
}

func (h host) there(name string) bool {
	_, err := os.Lstat(filepath.Join(h.root, name))
	return err == nil
}

// joined writes the files of kubelet node join, with the kubelet in the directory programs.
func (h host) joined(programs, flags string) {
	h.Helper()
	const mark = "# Written by `kubelet node join`; `kubelet node leave` removes it.\n"
	for _, name := range []string{"kubelet", "proxy"} {
		h.write("etc/systemd/system/"+name+".service", mark+"[Service]\nExecStart=@"+programs+"/"+name+" $ARGS\n")
		h.write("show/"+name+".service", "@"+programs+"/"+name+" $ARGS")
	}
	h.write("etc/default/kubelet", mark+"KUBELET_EXTRA_ARGS=\""+flags+"\"\n")
	h.write("etc/default/proxy", mark)
	h.write("etc/kubernetes/kubelet.conf", "secret")
	h.write("var/lib/kubelet/pods/x/volume", "data")
}

// TestPurge: a purge removes what join wrote and that kubelet's data, but nothing of another kubelet that was installed
// since.
func TestPurge(t *testing.T) {
	const others, notOurs, inUse = "this host has another kubelet", "it is not of a node that", "containers or mounts use it"
	for name, c := range map[string]struct {
		change     func(h host)
		says       string
		keepsConf  bool
		keepsData  bool
		wantsUnits bool
	}{
		"joined":            {change: func(host) {}},
		"nothing":           {change: func(h host) { _ = os.RemoveAll(filepath.Join(h.root, "var")); h.unmark() }, keepsConf: true},
		"archive, /usr/bin": {change: func(h host) { h.write("usr/bin/kubelet", "") }, says: others, keepsConf: true, keepsData: true, wantsUnits: true},
		"archive, /opt/k":   {change: func(h host) { h.joined("/opt/k", "--root-dir=@/var/lib/kubelet"); h.write("opt/k/kubelet", "") }, says: others, keepsConf: true, keepsData: true, wantsUnits: true},
		"unit without systemd": {change: func(h host) {
			h.joined("/opt/k", "")
			h.write("opt/k/kubelet", "")
			_ = os.RemoveAll(filepath.Join(h.root, "run"))
		}, says: others, keepsConf: true, keepsData: true, wantsUnits: true},
		"effective unit": {change: func(h host) {
			h.write("show/kubelet.service", "@/opt/k/kubelet --cert-path=/none")
			h.write("opt/k/kubelet", "")
		}, says: others, keepsConf: true, keepsData: true, wantsUnits: true},
		"drop-in of the admin": {change: func(h host) {
			h.write("etc/systemd/system/kubelet.service.d/x.conf", "[Service]\nExecStart=\nExecStart=-@/opt/kubelet --x\n")
			h.write("opt/kubelet", "")
		}, says: others, keepsConf: true, keepsData: true, wantsUnits: true},
		"unit runs":             {change: func(h host) { h.write("active/kubelet.service", "") }, says: others, keepsConf: true, keepsData: true, wantsUnits: true},
		"process runs":          {change: func(h host) { h.write("proc/77/comm", "kubelet\n") }, says: others, keepsConf: true, keepsData: true, wantsUnits: true},
		"k3s, or the node left": {change: func(h host) { h.unmark() }, says: notOurs, keepsConf: true, keepsData: true},
		"data elsewhere":        {change: func(h host) { h.joined("/usr/bin", "--v=2 --root-dir=@/data/kubelet") }, says: notOurs, keepsData: true},
		"data below":            {change: func(h host) { h.joined("/usr/bin", "--v=2 --root-dir=@/var/lib/kubelet/x --v=3") }, says: notOurs, keepsData: true},
		"data here":             {change: func(h host) { h.joined("/usr/bin", "--v=2 --root-dir=@/var/lib/kubelet --v=3") }},
		"mounts":                {change: func(h host) { h.write("proc/self/mounts", "tmpfs @/var/lib/kubelet/pods/x/v tmpfs rw 0 0\n") }, says: inUse, keepsData: true},
		"containers": {change: func(h host) {
			h.write("proc/77/mountinfo", "1 2 8:1 /lib/kubelet/pods/x/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw\n")
		}, says: inUse, keepsData: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			h.joined("/usr/bin", "--root-dir=@/var/lib/kubelet")
			c.change(h)
			says, _ := h.run("deb-postremove", "purge")
			if c.says == "" && says != "" || !strings.Contains(says, c.says) || strings.Count(says, "\n") > 1 {
				t.Errorf("it says %q, want %q", says, c.says)
			}
			for file, want := range map[string]bool{"etc/kubernetes/kubelet.conf": c.keepsConf, "var/lib/kubelet/pods/x/volume": c.keepsData, "etc/systemd/system/kubelet.service": c.wantsUnits, "etc/default/proxy": c.wantsUnits} {
				if h.there(file) != want {
					t.Errorf("%s: there is %v, want %v", file, !want, want)
				}
			}
		})
	}
}

// unmark makes the host one that join did not set up: without join's units, and with foreign credentials.
func (h host) unmark() {
	h.Helper()
	for _, name := range []string{"etc/systemd/system", "etc/default", "show"} {
		if err := os.RemoveAll(filepath.Join(h.root, name)); err != nil {
			h.Fatal(err)
		}
	}
}

// TestOthersUnits: the scripts act only on units that run the package's programs.
func TestOthersUnits(t *testing.T) {
	for kind, c := range map[string]struct{ remove, upgrade []string }{
		"deb": {[]string{"deb-preremove", "remove"}, []string{"deb-postinstall", "configure", "0.0.1-1"}},
		"rpm": {[]string{"rpm-preremove", "0"}, []string{"rpm-postinstall", "2"}},
	} {
		h := newHost(t)
		h.write("show/kubelet.service", "@/usr/bin/kubelet $X")
		h.write("show/proxy.service", "@/opt/squid/proxy --listen=@/usr/bin/proxy.sock")
		h.write("show/kubelet-cri.service", "@/usr/bin/nice @/usr/bin/kubelet cri")
		if _, asked := h.run(c.remove[0], c.remove[1:]...); asked != "stop kubelet.service kubelet-cri.service\n" {
			t.Errorf("%s: a removal asks for\n%s", kind, asked)
		}
		if _, asked := h.run(c.upgrade[0], c.upgrade[1:]...); !strings.HasSuffix(asked, "daemon-reload\ntry-restart kubelet.service\ntry-restart kubelet-cri.service\n") {
			t.Errorf("%s: an upgrade asks for\n%s", kind, asked)
		}
		if err := os.RemoveAll(filepath.Join(h.root, "show")); err != nil {
			t.Fatal(err)
		}
		if says, asked := h.run(c.remove[0], c.remove[1:]...); says+asked != "" {
			t.Errorf("%s: without units a removal says %q and asks for %q", kind, says, asked)
		}
	}
}

// TestRestartFails: systemd treats a unit of Type=simple as started even if its program exits, so an upgrade checks again the units that ran
// before.
func TestRestartFails(t *testing.T) {
	for _, args := range [][]string{{"deb-postinstall", "configure", "0.0.1-1"}, {"rpm-postinstall", "2"}} {
		h := newHost(t)
		h.joined("/usr/bin", "")
		h.write("active/kubelet.service", "")
		h.write("active/proxy.service", "")
		if says, _ := h.run(args[0], args[1:]...); says != "" {
			t.Errorf("%s: with both well it says %q", args[0], says)
		}
		h.write("broken/kubelet.service", "")
		if says, _ := h.run(args[0], args[1:]...); says != "winkube: kubelet.service did not restart: systemctl status kubelet.service says why\n" {
			t.Errorf("%s: it says %q", args[0], says)
		}
		if says, _ := h.run(args[0], args[1:]...); says != "" {
			t.Errorf("%s: of a unit that did not run before it says %q", args[0], says)
		}
	}
}
