package e2e

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/winkube/winkube/test/output"
)

// TestWrongFlags starts both programs with wrong arguments: one line of output, exit code 1, and no change on the host.
func TestWrongFlags(t *testing.T) {
	node := cluster.Nodes[0]
	for _, test := range []struct {
		program string
		env     string
		replace string // replaces this flag of the node's own command line ...
		with    string // ... with this
	}{
		{program: "kubelet", with: "--no-such-flag"},
		{program: "kubelet", replace: "--kubeconfig=", with: "--kubeconfig=/no/such/file"},
		{program: "kubelet", replace: "--cluster-cidr=", with: "--cluster-cidr=banana"},
		{program: "kubelet", replace: "--node-ip=", with: "--node-ip=300.0.0.1"},
		{program: "kubelet", replace: "--cluster-dns=", with: "--cluster-dns=banana"},
		{program: "kubelet", replace: "--docker-endpoint=", with: "--docker-endpoint=banana"},
		{program: "kubelet", replace: "--client-ca-file=", with: "--client-ca-file=/no/such/file"},
		{program: "kubelet", replace: "--network-mode=", with: "--network-mode=banana"},
		{program: "kubelet", with: "banana"},
		{program: "proxy", with: "--no-such-flag"},
		{program: "proxy", replace: "--kubeconfig=", with: "--kubeconfig=/no/such/file"},
		{program: "proxy", replace: "--cluster-cidr=", with: "--cluster-cidr=banana"},
		{program: "proxy", replace: "--bind-address=", with: "--bind-address=banana"},
		{program: "proxy", replace: "--healthz-bind-address=", with: "--healthz-bind-address=banana"},
		{program: "proxy", with: "--proxy-mode=banana"},
		{program: "proxy", env: "INTERFACE_TO_ADD_SERVICE_IP=banana"},
		{program: "proxy", with: "banana"},
	} {
		t.Run(strings.TrimSpace(test.program+" "+test.env+test.with), func(t *testing.T) {
			argv := node.Process(test.program).Argv()
			if test.replace != "" {
				argv = slices.DeleteFunc(argv, func(arg string) bool { return strings.HasPrefix(arg, test.replace) })
			}
			if test.with != "" {
				argv = append(argv, test.with)
			}
			if test.env != "" {
				argv = append([]string{"env", test.env}, argv...)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			before := network(t)
			said, err := output.Of(node.Command(ctx, argv...))
			code := -1
			if exit, ok := err.(*exec.ExitError); ok {
				code = exit.ExitCode()
			}
			if text := strings.TrimSpace(said.Stderr); code != 1 || text == "" || strings.Contains(text, "\n") {
				t.Errorf("exit code %d (%v), want 1; want one line, got:\n%s", code, err, said)
			} else {
				t.Log(text)
			}
			if diff := difference(before, network(t)); diff != "" {
				t.Errorf("the host's network changed:\n%s", diff)
			}
		})
	}
}

// network returns the network state that a wrongly started program must not change.
func network(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, argv := range [][]string{{"ip", "-br", "addr"}, {"ip", "route"}, {"iptables", "-S"}, {"iptables", "-t", "nat", "-S"}} {
		out, err := cluster.Nodes[0].Exec(t.Context(), argv...)
		if err != nil {
			t.Fatal(err)
		}
		all.WriteString(out)
	}
	return all.String()
}
