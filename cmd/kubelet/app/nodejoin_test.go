package app

import (
	"bytes"
	"strings"
	"testing"
)

// TestNodeArguments: join and leave report errors in the command line before they check anything else; both names of the hash's flag work.
func TestNodeArguments(t *testing.T) {
	for line, want := range map[string]string{
		"join": "want SERVER, --token and --discovery-token-ca-cert-hash",
		"join a:1 b:2 --token=abcdef.0123456789abcdef":                                     `arguments ["a:1" "b:2"]: want one SERVER`,
		"join a:1 --token=abcdef.0123456789abcdef -- eu":                                   `argument "eu" after --: want flags of the form --name=value`,
		"join a:1 --token=abcdef.0123456789abcdef -- --v=2 -- eu":                          `argument "eu" after --`,
		"join a:1 --token=abcdef.0123456789abcdef --ca-cert-hash=sha256:12":                "--discovery-token-ca-cert-hash=sha256:12: want sha256:",
		"join a:1 --token=abcdef.0123456789abcdef --discovery-token-ca-cert-hash sha256:1": "--discovery-token-ca-cert-hash=sha256:1: want sha256:",
		"join a:1 --token abc --ca-cert-hash sha256:12":                                    "--token: 3 characters that are not a join token",
		"join a:1 --tokens=x": "unknown flag: --tokens",
		"join a:1 --target=k --token=abcdef.0123456789abcdef":                               "--target=k: want an absolute path",
		"join a:1 -- --no-such=1":                                                           "flags for the kubelet: unknown flag: --no-such",
		"join a:1 -- --max-pods=many":                                                       "flags for the kubelet: invalid argument",
		"join --kubeconfig=k.conf --proxy-kubeconfig=p.conf -- --cluster-dns=x":             "flags for the kubelet: --cluster-dns=x: want ",
		"join --kubeconfig=k.conf --proxy-kubeconfig=p.conf -- --network-mode=underlay":     "flags for the kubelet: --network-mode=underlay: ",
		"join --kubeconfig=k.conf --proxy-kubeconfig=p.conf -- --config=/no/such/file.yaml": "flags for the kubelet: --config",
		"join --kubeconfig=k.conf --proxy-kubeconfig=p.conf -- --config=file.yaml":          "flags for the kubelet: --config=file.yaml: want an absolute path",
		"join --kubeconfig=k.conf --proxy-kubeconfig=p.conf -- --client-ca-file=/x":         "--client-ca-file=/x for the kubelet: `node join` sets this flag",
		"join --kubeconfig=k.conf":                                                          "--kubeconfig needs --proxy-kubeconfig",
		"leave now":                                                                         `unknown command "now"`,
	} {
		var out bytes.Buffer
		command := newNodeCommand(&out)
		command.SilenceErrors, command.SilenceUsage = true, true
		command.SetArgs(strings.Fields(line))
		if err := command.Execute(); err == nil || !strings.Contains(err.Error(), want) || out.Len() > 0 {
			t.Errorf("%s: %v, want %q\n%s", line, err, want, out.String())
		}
	}
}
