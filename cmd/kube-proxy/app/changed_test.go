package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const minimalConfig = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// TestConfigChanged: a mistake in the file changes nothing; a valid change ends the proxy; writing the same content
// again is no change.
func TestConfigChanged(t *testing.T) {
	changes(t, func(t *testing.T, dir, to string) {
		data, err := os.ReadFile(filepath.Join(dir, to))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "new"), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
}

// TestConfigLinkChanged is TestConfigChanged for a symbolic link that gets another target, as in ConfigMap volumes.
func TestConfigLinkChanged(t *testing.T) {
	changes(t, func(t *testing.T, dir, to string) {
		if err := os.Symlink(to, filepath.Join(dir, "new")); err != nil {
			t.Skipf("cannot make links here: %v", err)
		}
	})
}

// changes goes through the lifetime of config.yaml. replace makes the file "new" have the content of another file in
// the directory.
func changes(t *testing.T, replace func(t *testing.T, dir, to string)) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	lead := func(to string) {
		t.Helper()
		replace(t, dir, to)
		err := os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "config.yaml"))
		for deadline := time.Now().Add(time.Minute); err != nil && time.Now().Before(deadline); { // Windows refuses while the proxy reads it
			err = os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "config.yaml"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	write("1", minimalConfig)
	write("2", minimalConfig+"clusterCIDR: 10.244.0.0\n")
	write("3", minimalConfig+"clusterCIDR: 10.244.0.0/16\n")
	lead("1")
	path := filepath.Join(dir, "config.yaml")
	args := []string{"--config=" + path, "--kubeconfig=none", "--nodeport-addresses=10.0.0.0/8,192.0.2.0/24", "--feature-gates=A=true"}
	checks := make(chan error, 10)
	check := func() error {
		err := recheck(args)
		checks <- err
		return err
	}
	ended := make(chan error)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- untilChanged(ctx, path, []byte(minimalConfig), check) }()
	write("other", "")
	lead("2")
	if err := <-checks; err == nil || !strings.Contains(err.Error(), "clusterCIDR") || !strings.Contains(err.Error(), "10.244.0.0") {
		t.Errorf("a mistake: %v", err)
	}
	lead("3")
	if err := <-ended; !errors.Is(err, errConfigChanged) {
		t.Errorf("a good change: %v", err)
	}
	go func() { ended <- untilChanged(ctx, path, []byte(minimalConfig+"clusterCIDR: 10.244.0.0/16\n"), check) }()
	write("3", minimalConfig+"clusterCIDR: 10.244.0.0/16\n")
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("no change: %v", err)
	}
}

// TestConfigWrittenAgain: a file that was read half written, and then has its previous content, has not changed.
func TestConfigWrittenAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(minimalConfig[:len(minimalConfig)/2]), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := untilChanged(ctx, path, []byte(minimalConfig), func() error {
		cancel() // after which it ends, unless it treats the file as changed
		return os.WriteFile(path, []byte(minimalConfig), 0o600)
	})
	if err != nil {
		t.Error(err)
	}
}

// TestBegin: a service whose configuration file appears late, with a disk, reads it at its next try.
func TestBegin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "proxy.yaml")
	args := []string{"--config=" + file, "--master=http://127.0.0.1:1", "--hostname-override=node1"}
	if _, _, _, err := begin(args); err == nil || !strings.Contains(err.Error(), "--config") {
		t.Errorf("without the file: %v", err)
	}
	if err := os.WriteFile(file, []byte(minimalConfig+"hostnameOverride: other\nclusterCIDR: 10.9.0.0/16\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	next, _, _, err := begin(args) // other problems of the test's host do not matter here
	if err != nil && strings.Contains(err.Error(), "--config") || !next.file.Sets("cluster-cidr") || next.file.Sets("hostname-override") {
		t.Errorf("with it: %+v, %v", next.file, err)
	}
}
