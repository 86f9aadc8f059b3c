package routes

import (
	"fmt"
	"strings"
	"testing"
)

// TestLines prints the commands that the Windows pages told users to type on Lin01, Win01 and Win02, and the routes for
// a router in front of them.
func TestLines(t *testing.T) {
	var b strings.Builder
	for _, hop := range []NextHop{NodeIP, PodGateway} {
		for _, c := range []struct {
			self, link string
			form       Form
		}{
			{"", "", IPRoute}, {"", "", RouteAdd}, {"", "", Generic},
			{"Lin01", "eth0", IPRoute}, {"Win01", "12", RouteAdd}, {"Win02", "12", RouteAdd},
		} {
			state, problems := Plan(HostGateway, c.self, seeds(), Options{NextHop: hop})
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			fmt.Fprintf(&b, "## for %q, next hop %s, %s\n%s", c.self, hop, c.form, state.Lines(c.form, c.link))
		}
	}
	six, _ := Plan(HostGateway, "", append(seeds(), node("six", "fd00:1::14", "fd00:244:0:1::/64")), Options{})
	for _, form := range []Form{IPRoute, RouteAdd, Generic} {
		fmt.Fprintf(&b, "## dual stack, %s\n%s", form, six.Lines(form, ""))
	}
	golden(t, "lines", b.String())
	for _, s := range []string{"ip-route", "route-add", "generic"} {
		if f, err := ParseForm(s); err != nil || string(f) != s {
			t.Errorf("%q, %v", f, err)
		}
	}
	if _, err := ParseForm("cisco"); err == nil || !strings.Contains(err.Error(), `form "cisco" is not known; want ip-route`) {
		t.Errorf("%v", err)
	}
}
