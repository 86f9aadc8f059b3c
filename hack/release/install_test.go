package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/output"
)

// joined sets the machine up as `kubelet node join` leaves it.
func (m *machine) joined() {
	m.Helper()
	for _, name := range []string{"kubelet", "proxy"} {
		m.write("etc/systemd/system/"+name+".service", "# Written by `kubelet node join`; `kubelet node leave` removes it.\n[Service]\nExecStart=/usr/bin/"+name+" $X\n", 0o644)
		m.write("etc/default/"+name, "# Written by `kubelet node join`; `kubelet node leave` removes it.\nX=\n", 0o644)
	}
	for _, name := range []string{"kubelet.conf", "proxy.conf", "proxy.token", "pki/ca.crt"} {
		m.write("etc/kubernetes/"+name, name, 0o600)
	}
	m.write("var/lib/kubelet/pods/x/volume", "data", 0o600)
	m.must("mkdir -p /etc/systemd/system/multi-user.target.wants; ln -sf /usr/lib/systemd/system/kubelet.service /etc/systemd/system/multi-user.target.wants/kubelet.service")
}

// TestInstallDeb installs, upgrades, breaks, removes and purges the Debian package of _output/release.
func TestInstallDeb(t *testing.T) {
	m := newMachine(t)
	version, err := os.ReadFile("../VERSION")
	if err != nil {
		t.Fatal(err)
	}
	arch := runtime.GOARCH
	name := packageName("deb", arch, strings.TrimSpace(string(version)))
	m.put(filepath.Join(m.artefact, name), "root/new.deb")
	m.must(`cd /root && dpkg-deb -R new.deb old && sed -i 's/^Version: .*/Version: 0.0.1-1/' old/DEBIAN/control && echo old >old/usr/share/winkube/package && dpkg-deb --root-owner-group -Zgzip -z1 -b old old.deb
mkdir -p theirs/DEBIAN && printf 'Package: kubelet\nVersion: 1.36.3-1.1\nArchitecture: all\nMaintainer: them\nDescription: theirs\n' >theirs/DEBIAN/control && dpkg-deb -b theirs theirs.deb
head -c $(($(stat -c %s new.deb) / 2)) new.deb >half.deb; mkdir -p etc; rm -rf old theirs`)
	before := m.tree()
	m.asked()

	m.refuses("dpkg -i /root/half.deb", "unexpected end of file")
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[arch]
	m.put(filepath.Join(m.artefact, packageName("deb", other, strings.TrimSpace(string(version)))), "root/other.deb")
	m.refuses("dpkg -i /root/other.deb", "package architecture ("+other+") does not match system")
	m.must("dpkg -i /root/theirs.deb")
	m.refuses("dpkg -i /root/new.deb", "winkube conflicts with kubelet")
	if out := m.must("apt-get --simulate --no-install-recommends install /root/new.deb"); !strings.Contains(out, "REMOVED:\n  kubelet\n") {
		m.Errorf("apt in the place of theirs says\n%s", out)
	}
	m.must("dpkg -P kubelet")
	m.must("dpkg -P winkube || true")
	if got := m.tree(); got != before {
		t.Fatalf("refused packages leave\n%s", difference(before, got))
	}
	m.asked()

	m.must("dpkg -i /root/new.deb")
	if out := m.must("dpkg -V winkube; kubelet --version; proxy --version=full"); !strings.HasPrefix(out, "Kubernetes v1.") || !strings.Contains(out, "winkube "+strings.TrimSpace(string(version))+"\ncommit ") || !strings.Contains(out, "engine Docker") {
		t.Errorf("the programs print\n%s", out)
	}
	if got := m.asked(); got != "--system daemon-reload\n" {
		t.Errorf("an installation asks systemctl for\n%s", got)
	}
	if out := m.must("ls /etc/systemd/system /etc/default /etc/kubernetes /var/lib/kubelet 2>&1 || true"); strings.Contains(out, "kubelet.service") || strings.Contains(out, "\nproxy") || strings.Contains(out, "kubelet\n") {
		t.Errorf("an installation makes\n%s", out)
	}

	m.joined()
	for _, file := range []string{"old.deb", "new.deb"} { // back to the previous version, and up again
		m.must("dpkg -i /root/" + file)
		if got := m.asked(); got != "--system daemon-reload\ntry-restart kubelet.service\ntry-restart proxy.service\ntry-restart kubelet-cri.service\n" {
			t.Errorf("the change to %s asks systemctl for\n%s", file, got)
		}
	}
	m.refuses("apt-get --simulate --no-install-recommends --yes install /root/old.deb", "without --allow-downgrades")
	m.refuses("dpkg -i /root/half.deb", "unexpected end of file")
	m.must("dpkg -V winkube && test -x /usr/bin/kubelet") // what is refused changes nothing
	if got := m.asked(); got != "" {
		t.Errorf("refused packages ask systemctl for\n%s", got)
	}
	m.must("dpkg --unpack /root/old.deb") // as if power fails before the scripts run
	m.must("kubelet --version && dpkg --configure -a && dpkg -i /root/new.deb && grep -q X= /etc/default/kubelet")
	m.asked()

	if out := m.must("dpkg -r winkube"); !strings.Contains(out, "this host is still a node, and its containers keep running; to take it out of the cluster, run `kubelet node leave` before") {
		t.Errorf("a removal from a node says\n%s", out)
	}
	if got := m.asked(); !strings.HasPrefix(got, "stop kubelet.service proxy.service kubelet-cri.service\n") {
		t.Errorf("a removal asks systemctl for\n%s", got)
	}
	m.must("test ! -e /usr/bin/kubelet && test -e /etc/kubernetes/kubelet.conf && test -e /var/lib/kubelet/pods/x/volume")
	m.must("dpkg -P winkube")
	if got := m.tree(); got != before {
		t.Errorf("a purge leaves or takes\n%s", difference(before, got))
	}

	m.must("dpkg -i /root/new.deb")
	m.joined()
	m.write("root/kubelet", "#!/bin/sh\n", 0o755)
	if out := m.must("dpkg -r winkube && cp /root/kubelet /usr/bin/kubelet && dpkg -P winkube"); !strings.Contains(out, "/var/lib/kubelet stay: this host has another kubelet") {
		t.Errorf("a purge beside another kubelet says\n%s", out)
	}
	m.must("test -e /var/lib/kubelet/pods/x/volume && test -e /etc/kubernetes/kubelet.conf && test -e /etc/systemd/system/kubelet.service")
}

// TestInstallRPM installs the rpm of _output/release over an older one, and removes it. rpm runs outside the machine and installs into it.
func TestInstallRPM(t *testing.T) {
	m := newMachine(t)
	top := filepath.Join("..", "..")
	src, err := readSource(t.Context(), top, "")
	if err != nil {
		t.Fatal(err)
	}
	name := packageName("rpm", runtime.GOARCH, src.Version)
	older := *src
	older.Version = "0.0.1"
	checkout := checkoutFiles(t)
	files, err := packageFiles("rpm", &older, checkout, nil, []file{{"kubelet", 0o755, []byte("#!/bin/sh\n")}, {"proxy", 0o755, []byte("#!/bin/sh\n")}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	old, err := older.makePackage(t.Context(), "rpm", runtime.GOARCH, t.TempDir(), nfpmTool(t), files, scriptsOf("rpm", checkout))
	if err != nil {
		t.Fatal(err)
	}
	oldFile := filepath.Join(t.TempDir(), old.name)
	if err := os.WriteFile(oldFile, old.data, 0o644); err != nil {
		t.Fatal(err)
	}
	rpm := func(args ...string) (output.Said, error) {
		return output.Of(m.inside(`exec rpm --root "$PWD" "$@"`, append([]string{"rpm"}, args...)...))
	}
	must := func(args ...string) {
		t.Helper()
		if said, err := rpm(args...); err != nil {
			t.Fatalf("rpm %q: %v: %s", args, err, said)
		}
	}
	m.must("mkdir -p /var/lib/rpm /usr/share/licenses /usr/share/zsh/site-functions /usr/share/fish/vendor_completions.d /usr/share/bash-completion/completions /usr/lib/systemd/system")
	must("--initdb")
	before := m.tree()
	whole, err := os.ReadFile(filepath.Join(m.artefact, name))
	if err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(t.TempDir(), "half.rpm")
	if err := os.WriteFile(half, whole[:len(whole)/2], 0o644); err != nil {
		t.Fatal(err)
	}
	refuses := func(want string, args ...string) {
		t.Helper()
		before := m.tree()
		if said, err := rpm(args...); err == nil || !strings.Contains(said.Stderr, want) {
			t.Errorf("rpm %q: %v, want %q in %s", args, err, want, said)
		}
		if got := m.tree(); got != before || m.asked() != "" {
			t.Errorf("rpm %q changes\n%s", args, difference(before, got))
		}
	}
	refuses("does not verify: Payload SHA256 digest: BAD", "-i", "--nodeps", half)
	refuses("intended for a different architecture", "-i", "--nodeps", filepath.Join(m.artefact, packageName("rpm", map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH], src.Version)))
	must("-i", "--nodeps", oldFile)
	if got := m.asked(); got != "daemon-reload\n" {
		t.Errorf("an installation asks systemctl for\n%s", got)
	}
	must("-U", "--nodeps", filepath.Join(m.artefact, name))
	if got := m.asked(); got != "daemon-reload\ntry-restart kubelet.service\ntry-restart proxy.service\ntry-restart kubelet-cri.service\ndaemon-reload\n" {
		t.Errorf("an upgrade asks systemctl for\n%s", got)
	}
	must("-V", "--nodeps", "winkube")
	if out := m.must("proxy --version=full"); !strings.Contains(out, "winkube "+src.Version+"\n") {
		t.Errorf("the proxy prints\n%s", out)
	}
	refuses("which is newer than", "-U", "--nodeps", oldFile)
	must("-U", "--nodeps", "--oldpackage", oldFile)
	m.asked()
	must("-e", "winkube")
	if got := m.asked(); got != "stop kubelet.service proxy.service kubelet-cri.service\ndaemon-reload\n" {
		t.Errorf("a removal asks systemctl for\n%s", got)
	}
	if got := m.tree(); got != before {
		t.Errorf("a removal leaves or takes\n%s", difference(before, got))
	}
}

// difference returns the lines that only one of two texts has.
func difference(before, after string) string {
	var out strings.Builder
	for _, side := range []struct{ mark, in, notIn string }{{"-", before, after}, {"+", after, before}} {
		have := map[string]bool{}
		for line := range strings.Lines(side.notIn) {
			have[line] = true
		}
		for line := range strings.Lines(side.in) {
			if !have[line] {
				fmt.Fprint(&out, side.mark, line)
			}
		}
	}
	return out.String()
}
