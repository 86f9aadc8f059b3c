package netsh

import (
	"strings"
	"testing"

	"github.com/winkube/winkube/test/windows/simulators/calls"
)

func TestCommands(t *testing.T) {
	log := &calls.Log{}
	n := New(log)
	for _, test := range []struct{ line, want string }{
		{"interface portproxy add v4tov4 listenport=80 listenaddress=10.96.0.10 connectaddress=10.244.1.7 connectport=8080", ""},
		{"interface portproxy add v4tov4 listenport=80 listenaddress=10.96.0.10 connectaddress=10.244.1.8 connectport=8080", ""}, // replaces the rule
		{"interface portproxy add v4tov4 81 10.244.1.9", ""},                                                                     // positional
		{"interface portproxy add v4tov6 listenport=82 connectaddress=fd00::1", ""},
		{"interface portproxy add v4tov4 listenport=80 connectaddress=fd00::1", badParameter},
		{"interface portproxy add v4tov4 listenport=0 connectaddress=10.0.0.1", badParameter},
		{"interface portproxy add v4tov4 listenport=80 connectto=10.0.0.1", badSyntax},
		{"interface portproxy add v4tov4 listenport=80 protocol=udp", badSyntax},
		{"interface portproxy delete v4tov4 listenport=80 connectaddress=10.0.0.1", badSyntax},
		{"interface portproxy delete v4tov4 listenport=80 listenaddress=10.96.0.11", notFound},
		{"interface portproxy set v4tov4 listenport=90 connectaddress=10.0.0.1", notFound},
		{"interface portproxy add v5tov4 listenport=80", "The following command was not found: interface portproxy add v5tov4 listenport=80.\r\n"},
		{"interface ipv4 add address name=eth0 address=10.96.0.10/32", ""},
		{"interface ipv4 add address name=eth0 address=10.96.0.10/32", "The object already exists.\r\n\r\n"},
		{"interface ipv4 set interface interface=eth0 forwarding=enabled", ""},
		{"interface ipv4 set interface interface=eth0 forwarding=on", badSyntax},
		{"interface ipv4 delete address name=eth0 address=10.96.0.11", "Element not found.\r\n\r\n"},
	} {
		out, code := n.Run(strings.Fields(test.line), nil)
		if (code != 0) != (test.want != "") || code != 0 && out != test.want {
			t.Errorf("%s: %d, %q, want %q", test.line, code, out, test.want)
		}
	}
	if len(log.Unknown()) != 1 {
		t.Errorf("unknown: %v", log.Unknown())
	}
	const want = `portproxy v4tov4 *:81 to 10.244.1.9:81
portproxy v4tov4 10.96.0.10:80 to 10.244.1.8:8080
portproxy v4tov6 *:82 to fd00::1:82
address 10.96.0.10 on eth0
interface eth0 IPv4 forwarding enabled
`
	if got := n.String(); got != want {
		t.Errorf("state:\n%s", got)
	}
}

func TestFirewall(t *testing.T) {
	n := New(&calls.Log{})
	for _, test := range []struct {
		line string
		ok   bool
	}{
		{`advfirewall firewall show rule name="a b"`, false},
		{`advfirewall firewall delete rule name="a b"`, false},
		{`advfirewall firewall add rule name="a b" dir=in action=allow program="C:\k\proxy.exe"`, true},
		{`advfirewall firewall add rule name="a b" dir=in action=allow service=iphlpsvc protocol=tcp localport=80,443,30000-30002`, true},
		{`advfirewall firewall add rule name=c dir=in action=allow localport=80`, false},
		{`advfirewall firewall add rule name=c dir=in action=allow protocol=tcp localport=80-`, false},
		{`advfirewall firewall add rule name=c dir=into action=allow`, false},
		{`advfirewall firewall add rule name=c dir=in action=allow program=proxy.exe`, false},
		{`advfirewall firewall add rule name=c dir=in action=allow`, true},
		{`advfirewall firewall show rule name="a b"`, true},
		{`advfirewall firewall delete rule name="a b"`, true},
		{`advfirewall firewall delete rule name=all`, false},
	} {
		script := test.line + "\r\n"
		if out, code := n.Run([]string{"-f", "x"}, &script); (code == 0) != test.ok {
			t.Errorf("%s: %d %q", test.line, code, out)
		}
	}
	if got := n.String(); got != "firewall \"c\" allow in  any \n" {
		t.Errorf("left: %q", got)
	}
}

// TestScript: netsh's own dump recreates the rules; a failing line does not stop the rest.
func TestScript(t *testing.T) {
	a := New(&calls.Log{})
	a.AddRule(Rule{"v4tov4", "10.96.0.10", "80", "10.244.1.7", "8080"})
	a.AddRule(Rule{"v4tov4", "*", "81", "10.244.1.8", "8081"})
	dump, code := a.Run([]string{"interface", "portproxy", "dump"}, nil)
	if code != 0 {
		t.Fatal(dump)
	}
	b := New(&calls.Log{})
	if out, code := b.Run([]string{"-f", "x"}, &dump); code != 0 || b.String() != a.String() {
		t.Errorf("%d %s: %s", code, out, b)
	}
	text := "interface portproxy delete v4tov4 listenport=99\r\n# a comment\r\ninterface portproxy delete v4tov4 \"listenport=81\"\r\n"
	if out, code := b.Run([]string{"-f", "x"}, &text); code != 1 || !strings.Contains(out, notFound) || len(b.Rules()) != 1 {
		t.Errorf("%d %q: %s", code, out, b)
	}
	if out, code := b.Run([]string{"-f", "missing"}, nil); code != 1 || out != notFound {
		t.Errorf("a missing script: %d %q", code, out)
	}
}
