package san

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/volume/paths"
)

// TestRealRecords: the real iscsiadm has its records where we look for them, reads what we write into them, and deletes them. It needs neither a target nor a
// kernel that has iSCSI.
func TestRealRecords(t *testing.T) {
	if !withOwnRecords(t) {
		return
	}
	k, ctx := &iscsi{run: command.New(), system: Host()}, t.Context()
	for portal, group := range map[string]string{"10.255.0.1:3260": ",1", "[fd00::1]:860": ",2", "10.255.0.2:3260": ""} {
		r := &record{IQN: "iqn.2003-01.org.example:a", Iface: defaultIface, From: defaultIface, Portals: []string{portal}, Ours: []string{portal}}
		node := []string{"-m", "node", "-T", r.IQN, "-p", portal + group, "-I", r.Iface}
		must := func(args ...string) string {
			t.Helper()
			out, err := k.adm(ctx, args...)
			if err != nil {
				t.Fatal(err)
			}
			return string(out)
		}
		must(append(node, "-o", "new")...)
		path, err := k.system.nodeRecord(r, portal)
		if err != nil {
			t.Fatal(err)
		}
		const secret = "p=1 # ä"
		if err := k.system.edit(path, []setting{{"node.session.auth.authmethod", "CHAP"}, {"node.session.auth.username", "user"}, {"node.session.auth.password", secret}}); err != nil {
			t.Fatal(err)
		}
		if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("the record has mode %v, %v", fi.Mode(), err)
		}
		must(append(node, "-o", "update", "-n", "node.startup", "-v", "manual")...)
		shown := must(append(node, "-o", "show", "-S")...)
		for _, line := range []string{"node.session.auth.authmethod = CHAP\n", "node.session.auth.username = user\n", "node.session.auth.password = " + secret + "\n", "node.startup = manual\n"} {
			if !strings.Contains(shown, line) {
				t.Errorf("%s: iscsiadm does not have %s", portal, line)
			}
		}
		if err := k.forget(ctx, r, false); err != nil {
			t.Error(err)
		}
		if err := k.forget(ctx, r, false); err != nil {
			t.Errorf("again: %v", err)
		}
		if paths.Exists(path) {
			t.Errorf("%s is still there", path)
		}
		testRealDiscovery(ctx, t, k, r, portal)
	}
}

func testRealDiscovery(ctx context.Context, t *testing.T, k *iscsi, r *record, portal string) {
	t.Helper()
	k.announce(r, portal)
	if _, err := k.adm(ctx, "-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", r.Iface, "-o", "new"); err != nil {
		t.Fatal(err)
	}
	if err := k.system.edit(k.system.discoveryRecord(portal), []setting{{"discovery.sendtargets.auth.username", "finder"}}); err != nil {
		t.Fatal(err)
	}
	if out, err := k.adm(ctx, "-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-o", "show"); err != nil || !strings.Contains(string(out), "discovery.sendtargets.auth.username = finder\n") {
		t.Errorf("%s, %v", out, err)
	}
	if err := k.forget(ctx, r, true); err != nil || k.system.discoveryRecord(portal) != "" {
		t.Errorf("the record of a discovery stays: %v", err)
	}
	if k.settle(r); len(r.Finds) > 0 {
		t.Errorf("still ours: %q", r.Finds)
	}
}

// withOwnRecords runs the test again where open-iscsi has no records, and reports whether this is it.
func withOwnRecords(t *testing.T) bool {
	if _, err := command.New().Run(t.Context(), nil, "iscsiadm", "--version"); err != nil || os.Geteuid() != 0 {
		t.Skipf("needs open-iscsi and root: %v", err)
	}
	return OwnMounts(t, `mount --make-rprivate / && mount -t tmpfs tmpfs /etc/iscsi && mkdir -p /var/lib/iscsi && mount -t tmpfs tmpfs /var/lib/iscsi && echo InitiatorName=iqn.2003-01.org.example:me >/etc/iscsi/initiatorname.iscsi`)
}

// OwnMounts runs the test again in a mount namespace that a shell script has prepared, and reports whether this is it.
func OwnMounts(t *testing.T, script string) bool {
	if os.Getenv("WINKUBE_OWN_MOUNTS") != "" {
		return true
	}
	run := command.NewWith([]string{"WINKUBE_OWN_MOUNTS=1"})
	out, err := run.Run(t.Context(), nil, "unshare", "--mount", "/bin/sh", "-c", script+` && exec "$0" "$@"`, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	if strings.Contains(string(out), "--- SKIP: "+t.Name()) {
		t.Skipf("%s", out)
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

// TestRealSystem: a loop device and sysfs of this kernel, as far as the kinds read them.
func TestRealSystem(t *testing.T) {
	s := Host()
	changed, stop, err := s.Events()
	if err != nil {
		t.Skipf("this kernel gives no events here: %v", err)
	}
	if changed == nil {
		t.Error("no channel")
	}
	stop()
	if _, err := s.list("class/no-such-class"); err != nil {
		t.Error(err)
	}
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Dev = filepath.Dir(file)
	if blank, err := s.blank("disk"); err != nil || !blank {
		t.Errorf("zeros are not blank: %v", err)
	}
	if _, err := s.blank("none"); err == nil {
		t.Error("a disk that is not there is blank")
	}
}
