package firewalld

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/winkube/winkube/pkg/daemon/bustest"
	"github.com/winkube/winkube/pkg/network/firewalld"
	"github.com/winkube/winkube/pkg/proxy/relay/nstest"
	"github.com/winkube/winkube/test/output"
)

// TestRealFirewalld: Debian's firewalld on its bus and in its network has the bridge in its zone, also after a reload, and says which ranges
// it trusts.
func TestRealFirewalld(t *testing.T) {
	if os.Getenv("WINKUBE_FIREWALLD") == "" {
		t.Skip("starts Debian's firewalld: only with WINKUBE_FIREWALLD=1")
	}
	nstest.In(t)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", bustest.Start(t))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- firewalld.Keep(ctx, "eth9") }()
	firewall := func(args ...string) string {
		t.Helper()
		said, err := output.Of(exec.CommandContext(ctx, "firewall-cmd", args...))
		if err != nil {
			t.Logf("firewall-cmd %v: %v: %s", args, err, said.Stderr)
		}
		return strings.TrimSpace(said.Stdout)
	}
	server := exec.CommandContext(ctx, "firewalld", "--nofork", "--nopid")
	server.Stdout, server.Stderr = os.Stdout, os.Stderr
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = server.Wait(); <-ended }()
	trusted := func(when string) {
		t.Helper()
		var said string
		for begin := time.Now(); time.Since(begin) < 2*time.Minute; time.Sleep(100 * time.Millisecond) {
			if said = firewall("--get-zone-of-interface=eth9"); said == firewalld.Zone {
				rules, err := output.Of(exec.CommandContext(ctx, "nft", "list", "ruleset"))
				if err != nil || !strings.Contains(rules.Stdout, `iifname "eth9"`) {
					t.Errorf("%s: %v: no rule names the interface:\n%s", when, err, rules)
				}
				return
			}
		}
		t.Fatalf("%s: the interface's zone: %s", when, said)
	}
	trusted("firewalld started")
	if got := firewall("--reload"); got != "success" {
		t.Fatalf("a reload: %q", got)
	}
	trusted("reloaded")

	pods, other := netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10::/56")
	if got := firewall("--zone=trusted", "--add-source="+pods.String()); got != "success" {
		t.Fatalf("the range: %q", got)
	}
	want := firewalld.State{Runs: true, Bridge: firewalld.Zone, Sources: map[netip.Prefix]string{pods: firewalld.Zone}}
	if got, err := firewalld.Look(ctx, "eth9", []netip.Prefix{pods, other}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("firewalld has %+v, %v; want %+v", got, err, want)
	}
}
