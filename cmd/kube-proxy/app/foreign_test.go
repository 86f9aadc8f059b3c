package app

import (
	"os"
	"strings"
	"testing"

	config "k8s.io/kube-proxy/config/v1alpha1"

	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/daemon/daemontest"
)

// TestUpstream: each flag and field of upstream's kube-proxy has one class, and the page says which. `go test -C hack/tools/kubernetes ./flags`
// compares the list of flags with upstream's code.
func TestUpstream(t *testing.T) {
	flags, err := os.ReadFile("testdata/upstream-flags.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, fs := mustParse(t)
	got, err := daemon.Comparison{Program: "kube-proxy", Kind: configKind, Upstream: string(flags), Flags: fs, Foreign: foreign, Bindings: bindings, Content: &config.KubeProxyConfiguration{}}.Page()
	if err != nil {
		t.Error(err)
	}
	const page = "../../../docs/reference/upstream-kube-proxy.md"
	daemontest.Page(t, page, got, *updatePage)
}

// TestPromises: a setting that promises what is not there is refused. A proxy that runs keeps its configuration when the
// file changes to such a setting.
func TestPromises(t *testing.T) {
	t.Setenv(envInterface, "")
	for flag, field := range map[string]string{
		"--iptables-localhost-nodeports=false": "iptables: {localhostNodePorts: false}",
		"--log-json-split-stream":              "logging: {options: {json: {splitStream: true}}}",
		"--log-text-split-stream=true":         "logging: {options: {text: {splitStream: true}}}",
	} {
		name, _, _ := strings.Cut(flag, "=")
		if _, _, err := parse([]string{flag}); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "want ") {
			t.Errorf("%s: %v", flag, err)
		}
		name, _, _ = strings.Cut(field, ":")
		file := "--config=" + configAt(t, header+field+"\n")
		if err := recheck([]string{file, "--master=https://x"}); err == nil || !strings.Contains(err.Error(), "proxy.yaml:3: "+name) || !strings.Contains(err.Error(), "want ") {
			t.Errorf("%s: %v", field, err)
		}
	}
	args := []string{"--iptables-localhost-nodeports", "--log-json-split-stream=false", "--master=https://x", "--config=" + configAt(t, header+"iptables: {localhostNodePorts: false}\n")}
	if err := recheck(args); err != nil {
		t.Errorf("a flag does not override the file: %v", err)
	}
}
