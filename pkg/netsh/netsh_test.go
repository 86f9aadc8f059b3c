package netsh

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/command/commandtest"
)

func rule(listen, connect string) Rule {
	return Rule{Listen: netip.MustParseAddrPort(listen), Connect: netip.MustParseAddrPort(connect)}
}

func TestLines(t *testing.T) {
	for _, test := range []struct {
		rule        Rule
		add, remove string
	}{
		{rule("10.96.0.10:80", "10.244.1.7:8080"), "v4tov4 listenport=80 listenaddress=10.96.0.10 connectaddress=10.244.1.7 connectport=8080", "v4tov4 listenport=80 listenaddress=10.96.0.10"},
		{rule("0.0.0.0:30080", "[fd00::7]:80"), "v4tov6 listenport=30080 connectaddress=fd00::7 connectport=80", "v4tov6 listenport=30080"},
		{rule("[fd00::1]:80", "10.244.1.7:80"), "v6tov4 listenport=80 listenaddress=fd00::1 connectaddress=10.244.1.7 connectport=80", "v6tov4 listenport=80 listenaddress=fd00::1"},
		{rule("[::]:81", "[fd00::7]:80"), "v6tov6 listenport=81 connectaddress=fd00::7 connectport=80", "v6tov6 listenport=81"},
	} {
		if got := test.rule.Add(); got != "interface portproxy add "+test.add {
			t.Errorf("add: %s", got)
		}
		if got := test.rule.Delete(); got != "interface portproxy delete "+test.remove {
			t.Errorf("delete: %s", got)
		}
	}
	for want, a := range map[string]Allow{
		`advfirewall firewall add rule name="a b" dir=in action=allow program="C:\k\proxy.exe"`:                                       {Name: "a b", Program: `C:\k\proxy.exe`},
		`advfirewall firewall add rule name="a" dir=in action=allow service=iphlpsvc protocol=tcp localport=80,443,30000-30002,65535`: {Name: "a", Service: "iphlpsvc", Ports: []uint16{80, 443, 30000, 30001, 30002, 65535}},
		`advfirewall firewall add rule name="a" dir=in action=allow protocol=udp localport=4789`:                                      {Name: "a", Ports: []uint16{4789}, UDP: true},
	} {
		if got := a.Add(); got != want {
			t.Errorf("firewall: %s, want %s", got, want)
		}
	}
}

// TestAdmit: the listing shows whether it succeeded, not the exit code: removing a missing rule fails, and a stopped
// firewall may not.
func TestAdmit(t *testing.T) {
	const listed = "\r\nRule Name:                            winkube x\r\n"
	for _, test := range []struct {
		name, program, output string
		exit                  error
		fails                 string
		script                []string
	}{
		{"made, where none was", `C:\k\x.exe`, listed, commandtest.Exit(1, ""), "", []string{"delete rule", `program="C:\k\x.exe"`, "show rule"}},
		{"recreated", `C:\k\x.exe`, "Deleted 2 rule(s).\r\n" + listed, nil, "", []string{"delete rule", "add rule", "show rule"}},
		{"the firewall is stopped", `C:\k\x.exe`, "no service", nil, `cannot make the rule "winkube x" of Windows Firewall: no service`, nil},
		{"none", "", "No rules match.", commandtest.Exit(1, ""), "", []string{"delete rule", "show rule"}},
		{"kept by a policy", "", listed, nil, `cannot remove the rule "winkube x"`, nil},
	} {
		fake := commandtest.New()
		var lines []string
		fake.Install("netsh", func(_ []byte, args []string) ([]byte, error) {
			script, err := os.ReadFile(args[1])
			if err != nil {
				return nil, err
			}
			lines = strings.Split(strings.TrimSpace(string(script)), "\r\n")
			return []byte(test.output), test.exit
		})
		err := New(fake).Admit(t.Context(), "winkube x", test.program)
		if test.fails == "" && err != nil || test.fails != "" && (err == nil || !strings.Contains(err.Error(), test.fails)) {
			t.Errorf("%s: %v, want %q", test.name, err, test.fails)
		}
		for i, want := range test.script {
			if len(lines) != len(test.script) || !strings.Contains(lines[i], want) || !strings.Contains(lines[i], `name="winkube x"`) {
				t.Errorf("%s: the script is %q, want %q", test.name, lines, test.script)
			}
		}
	}
}

// russian is the output of a Russian Windows: complaints about two lines, then the listing. Its comments are in the
// language of Windows, its commands are not.
const russian = "Не удается найти указанный файл.\r\n\r\n\r\n\r\n" +
	"#===========================\r\n# Конфигурация портов прокси\r\n#===========================\r\npushd interface portproxy\r\n\r\nreset\r\n" +
	"add v4tov4 listenport=80 listenaddress=10.96.0.10 connectaddress=10.244.1.7 connectport=8080\r\n" +
	"add v4tov6 listenport=81 connectaddress=fd00::7 connectport=80\r\n" +
	"add v6tov4 listenport=82 listenaddress=fd00::1 connectaddress=10.244.1.7\r\n" +
	"add v6tov6 listenport=83 listenaddress=* connectaddress=fd00::7 connectport=80\r\n" +
	"add v4tov4 listenport=84 connectaddress=intranet connectport=80\r\n" +
	"add v4tov4 listenport=http connectaddress=10.0.0.1 connectport=80\r\n" +
	"\r\n\r\npopd\r\n\r\n# Конец конфигурации портов прокси\r\n\r\n"

func TestParseDump(t *testing.T) {
	got, err := ParseDump(russian)
	if err != nil {
		t.Fatal(err)
	}
	want := []Rule{rule("10.96.0.10:80", "10.244.1.7:8080"), rule("0.0.0.0:81", "[fd00::7]:80"), rule("[fd00::1]:82", "10.244.1.7:82"), rule("[::]:83", "[fd00::7]:80"),
		{Listen: netip.MustParseAddrPort("0.0.0.0:84"), kind: "v4tov4"}}
	for i := range want[:4] {
		want[i].kind = want[i].Kind()
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read %v\nwant %v", got, want)
	}
	for _, text := range []string{"", "\r\n", "The following command was not found: interface portproxy dump.\r\n", russian[:strings.Index(russian, "popd")],
		"Listen on ipv4:             Connect to ipv4:\r\n"} {
		if got, err := ParseDump(text); err == nil {
			t.Errorf("%q was read as the listing %v", text, got)
		}
	}
	if got, err := ParseDump(russian + "pushd interface portproxy\r\nreset\r\npopd\r\n"); err != nil || len(got) > 0 {
		t.Errorf("the last listing counts: %v %v", got, err)
	}
}

// FuzzParseDump: no listing gives a rule that netsh could not have, and parsed rules can be written and parsed again.
func FuzzParseDump(f *testing.F) {
	f.Add(russian)
	f.Add("pushd interface portproxy\nadd v4tov4 listenport=0\nadd v6tov4 =\nadd\nadd v4tov4 listenport=99999 listenaddress=::1\npopd")
	f.Add("pushd interface portproxy\nadd v6tov6 listenport=1 listenaddress=fe80::1%eth0 connectaddress=::ffff:1.2.3.4\npopd\n\x00\xff")
	f.Fuzz(func(t *testing.T, text string) {
		rules, err := ParseDump(text)
		if err != nil && rules != nil {
			t.Fatal("rules beside an error")
		}
		for _, r := range rules {
			if !r.Listen.IsValid() || r.Listen.Port() == 0 || family(r.Listen.Addr()) != r.Kind()[:2] {
				t.Errorf("rule %+v", r)
			}
			if !r.Connect.IsValid() {
				continue
			}
			again, err := ParseDump(dumpBegin + "\n" + strings.TrimPrefix(r.Add(), "interface portproxy ") + "\n" + dumpEnd)
			if err != nil || len(again) != 1 || again[0] != r {
				t.Errorf("%+v read again: %+v %v", r, again, err)
			}
		}
	})
}

// runner reads the script as netsh.exe would.
type runner struct {
	script string
	err    error
}

func (r *runner) Run(_ context.Context, _ []byte, name string, args ...string) ([]byte, error) {
	if name != "netsh" || len(args) != 2 || args[0] != "-f" {
		return nil, errors.New("not run as netsh -f")
	}
	text, err := os.ReadFile(args[1])
	if err != nil {
		return nil, err
	}
	r.script = string(text)
	return []byte("printed"), r.err
}

func TestScript(t *testing.T) {
	for _, failure := range []error{nil, errors.New("exit status 1")} {
		r := &runner{err: failure}
		out, err := New(r).Script(t.Context(), []string{"first", "second"})
		if out != "printed" || !errors.Is(err, failure) || r.script != "first\r\nsecond\r\n" {
			t.Errorf("%q %v, script %q", out, err, r.script)
		}
	}
}
