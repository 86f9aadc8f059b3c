package sim_test

import (
	"net"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/windows/rig"
	"github.com/winkube/winkube/test/windows/simulators/sim"
)

// start installs a World into a prefix of that build.
func start(t *testing.T, build int) (*sim.World, *rig.Prefix) {
	t.Helper()
	return startBehind(t, build, func(l net.Listener) net.Listener { return l })
}

// startBehind is start with a wrapper around the World's listener.
func startBehind(t *testing.T, build int, between func(net.Listener) net.Listener) (*sim.World, *rig.Prefix) {
	t.Helper()
	p := rig.Test(t, build)
	w := sim.New(build)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.Serve(between(l))
	t.Cleanup(w.Close)
	if err := w.Install(t.Context(), p, l.Addr()); err != nil {
		t.Fatal(err)
	}
	return w, p
}

// TestNetsh runs netsh.exe: single commands, a script, and one that fails.
func TestNetsh(t *testing.T) {
	w, p := start(t, 14393)
	run := func(args ...string) string {
		out, err := p.Run(t.Context(), "netsh.exe", args...)
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(out, "\r", "")
	}
	run("interface", "portproxy", "add", "v4tov4", "listenport=80", "listenaddress=10.96.0.10", "connectaddress=10.244.1.7", "connectport=8080")
	const want = `
Listen on ipv4:             Connect to ipv4:

Address         Port        Address         Port
--------------- ----------  --------------- ----------
10.96.0.10      80          10.244.1.7      8080      

`
	if got := run("interface", "portproxy", "show", "all"); got != want {
		t.Errorf("show all printed %q, want %q", got, want)
	}
	if out, err := p.Run(t.Context(), "netsh.exe", "interface", "portproxy", "delete", "v4tov4", "listenport=81"); err == nil ||
		!strings.Contains(out, "cannot find the file") {
		t.Errorf("deleting what is not there: %v: %s", err, out)
	}
	if got := w.Log.Calls("run"); len(got) != 3 || got[2].Result != 1 {
		t.Errorf("calls:\n%s", w.Log)
	}
}
