package otherproxy

import (
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netns"

	"github.com/winkube/winkube/pkg/command"
)

// TestKernel: in a separate network namespace the real programs print rules of kube-proxy so that they are found, each
// by its own name, and none after they are removed.
func TestKernel(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("making a network namespace needs root")
	}
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := netns.Set(before); err != nil {
			t.Error(err)
		}
		before.Close()
		ns.Close()
		runtime.UnlockOSThread()
	}()
	run := command.New()
	host := linux{run: run, proc: "/proc/thread-self/net", held: heldOfHost}
	const rules = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-NODEPORTS - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n-A KUBE-SERVICES -p tcp -m tcp --dport 443 -j ACCEPT\n-A KUBE-SERVICES -j KUBE-NODEPORTS\nCOMMIT\n"
	for _, c := range []struct {
		trace, make, remove string
		program             []string
	}{
		{"2 rules of iptables-nft", rules, "*nat\nCOMMIT\n", []string{"iptables-nft-restore"}},
		{"2 rules of ip6tables-nft", rules, "*nat\nCOMMIT\n", []string{"ip6tables-nft-restore"}},
		{"2 rules of iptables-legacy", rules, "*nat\nCOMMIT\n", []string{"iptables-legacy-restore"}},
		{"2 rules of ip6tables-legacy", rules, "*nat\nCOMMIT\n", []string{"ip6tables-legacy-restore"}},
		{"table ip kube-proxy of nftables", "add table ip kube-proxy\n", "delete table ip kube-proxy\n", []string{"nft", "-f", "-"}},
		{"table ip6 kube-proxy of nftables", "add table ip6 kube-proxy\n", "delete table ip6 kube-proxy\n", []string{"nft", "-f", "-"}},
		{"1 address at interface kube-ipvs0 and 0 virtual servers of IPVS", "link add kube-ipvs0 type dummy\naddress add 10.96.0.1/32 dev kube-ipvs0\n", "link delete kube-ipvs0\n", []string{"ip", "-batch", "-"}},
	} {
		if found := host.look(t.Context()); len(found.Traces) > 0 {
			t.Fatalf("before %s: %+v", c.trace, found)
		}
		if _, err := run.Run(t.Context(), []byte(c.make), c.program[0], c.program[1:]...); err != nil {
			t.Logf("not on this machine: %v", err)
			continue
		}
		if found := host.look(t.Context()); !slices.Equal(found.Traces, []string{c.trace}) {
			t.Errorf("%s: found %+v", strings.Join(c.program, " "), found)
		}
		if _, err := run.Run(t.Context(), []byte(c.remove), c.program[0], c.program[1:]...); err != nil {
			t.Fatal(err)
		}
	}
}
