package nodejoin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/nodejoin"
)

// TestPackagedPrograms: programs of a deb or rpm run from their package's directory and stay when the node leaves: the
// package removes them.
func TestPackagedPrograms(t *testing.T) {
	t.Parallel()
	b := newBare(t, "linux")
	b.cfg.Layout.Package = filepath.Join(filepath.Dir(b.cfg.Layout.Programs), "package")
	b.cfg.Layout.Packaged = b.cfg.Layout.Programs
	b.must(os.WriteFile(b.cfg.Layout.Package, []byte("deb\n"), 0o644))
	b.must(os.Mkdir(b.cfg.Layout.Programs, 0o755))
	for _, program := range []string{b.cfg.Layout.Kubelet(), b.cfg.Layout.Proxy()} {
		b.must(os.WriteFile(program, []byte("1"), 0o755))
	}
	b.cfg.Programs = b.cfg.Layout.Programs
	before := b.tree()
	b.must(b.join())
	b.leaveAll(t, before)
	for _, program := range []string{b.cfg.Layout.Kubelet(), b.cfg.Layout.Proxy()} {
		if !there(program) {
			t.Errorf("%s was removed, but a package has it", program)
		}
	}
	b.must(os.Remove(b.cfg.Layout.Package))
	b.must(nodejoin.Leave(b.Context(), b.cfg.Layout, false, b.leaving(b.host())))
	if there(b.cfg.Layout.Kubelet()) {
		t.Error("without a package leave removes the programs")
	}
}

// TestPackagedCopies: if a package is installed, join with another --target copies the programs there, and leave
// removes only these copies.
func TestPackagedCopies(t *testing.T) {
	t.Parallel()
	b := newBare(t, "linux")
	b.cfg.Layout.Packaged = filepath.Join(filepath.Dir(b.cfg.Layout.Programs), "packaged")
	b.cfg.Layout.Package = filepath.Join(filepath.Dir(b.cfg.Layout.Programs), "package")
	b.must(os.WriteFile(b.cfg.Layout.Package, []byte("deb\n"), 0o644))
	b.must(os.Mkdir(b.cfg.Layout.Packaged, 0o755))
	for _, name := range []string{"kubelet", "proxy"} {
		b.must(os.WriteFile(filepath.Join(b.cfg.Layout.Packaged, name), []byte("1"), 0o755))
	}
	b.cfg.Programs = b.cfg.Layout.Packaged
	before := b.tree()
	b.must(b.join())
	if !there(b.cfg.Layout.Kubelet()) || !there(b.cfg.Layout.Proxy()) {
		t.Fatal("join did not copy the programs")
	}
	b.leaveAll(t, before)
	if there(b.cfg.Layout.Kubelet()) || there(b.cfg.Layout.Proxy()) {
		t.Error("leave keeps the copies that join made")
	}
	if !there(filepath.Join(b.cfg.Layout.Packaged, "kubelet")) {
		t.Error("leave removes the package's program")
	}
}

// TestDropInOfPackage: kubeadm's package installs its drop-in in the packages' unit directory. With it the kubelet
// would start with kubeadm's flags.
func TestDropInOfPackage(t *testing.T) {
	t.Parallel()
	b := newBare(t, "linux")
	b.cfg.Layout.Vendor = filepath.Join(filepath.Dir(b.cfg.Layout.Programs), "vendor")
	b.parts.Services = nodejoin.NewServices(b.cfg.Layout, b.host(), b.read)
	dropIn := filepath.Join(b.cfg.Layout.Vendor, "kubelet.service.d", "10-kubeadm.conf")
	b.must(os.MkdirAll(filepath.Dir(dropIn), 0o755))
	b.must(os.WriteFile(dropIn, nil, 0o644))
	before := b.tree()
	if err := b.join(); err == nil || !strings.Contains(err.Error(), dropIn+" exists: this host is set up for kubeadm") {
		t.Errorf("%v", err)
	}
	if b.tree() != before {
		t.Errorf("a refusal changes\n%s", b.tree())
	}
	b.must(os.Remove(dropIn))
	b.must(b.join())
}
