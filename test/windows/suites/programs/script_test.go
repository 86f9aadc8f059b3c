package programs

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/netsh"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/test/windows/simulators/calls"
	netshsim "github.com/winkube/winkube/test/windows/simulators/netsh"
)

// script reads as much of PowerShell as the scripts of build/windows use to call our programs: parameters, lists of words, paths, conditions on
// parameters. What it does not know, such as the firewall, it passes over.
type script struct {
	*testing.T
	vars  map[string][]string
	calls [][]string // programs with their arguments
	ended bool
}

var (
	parameter = regexp.MustCompile(`\[(?:string(?:\[\])?|switch)\] \$(\w+)(?: = (.+?))?,?$`)
	pathOf    = regexp.MustCompile(`^\$(\w+) = Join-Path (\$\w+) '([^']+)'$`)
	assigned  = regexp.MustCompile(`^\$(\w+) (\+?=) (@\(.*\)|".*"|'.*')$`)
	called    = regexp.MustCompile(`^(?:Invoke-Program|&) (\$\w+) (.+)$`)
	each      = regexp.MustCompile(`^foreach \(\$(\w+) in (.+)\) \{$`)
	condition = regexp.MustCompile(`^if \(\$(\w+)( -ne '')?\) \{$`)
	wordOf    = regexp.MustCompile(`'([^']*)'|"([^"]*)"|\$(\w+)|([\w.]+)`)
	named     = regexp.MustCompile(`\$(\w+)`)
)

// callsOf are the calls of our programs that a script makes with the given parameters.
func callsOf(t *testing.T, text string, given map[string][]string) [][]string {
	s := &script{T: t, vars: map[string][]string{}}
	text = strings.ReplaceAll(text, "\r\n", "\n")
	head, body, found := strings.Cut(text, "\n)\n")
	if !found {
		t.Fatal("the script has no parameters")
	}
	for line := range strings.Lines(head) {
		if m := parameter.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			s.vars[m[1]] = s.words(m[2])
		}
	}
	for name, value := range given {
		if _, ok := s.vars[name]; !ok {
			t.Fatalf("the script has no parameter -%s", name)
		}
		s.vars[name] = value
	}
	s.run(strings.Split(body, "\n"))
	return s.calls
}

// run goes through lines; a block ends with a } at its own depth.
func (s *script) run(lines []string) {
	for i := 0; i < len(lines) && !s.ended; i++ {
		line := strings.TrimSpace(lines[i])
		if !strings.HasSuffix(line, "{") {
			s.do(line)
			continue
		}
		indent := lines[i][:strings.Index(lines[i], line)]
		end := i + 1 + slices.IndexFunc(lines[i+1:], func(l string) bool { return strings.HasPrefix(l, indent+"}") })
		block := lines[i+1 : end]
		if m := each.FindStringSubmatch(line); m != nil {
			for _, value := range s.words(m[2]) {
				s.vars[m[1]] = []string{value}
				s.run(block)
			}
		} else if m := condition.FindStringSubmatch(line); m != nil && strings.Join(s.vars[m[1]], "") != "" {
			s.run(block)
		}
		i = end
	}
}

func (s *script) do(line string) {
	switch m := assigned.FindStringSubmatch(line); {
	case line == "return":
		s.ended = true
	case m != nil && m[2] == "+=":
		s.vars[m[1]] = append(s.vars[m[1]], s.words(m[3])...)
	case m != nil:
		s.vars[m[1]] = s.words(m[3])
	case pathOf.MatchString(line):
		m := pathOf.FindStringSubmatch(line)
		s.vars[m[1]] = []string{strings.Join(s.words(m[2]), "") + `\` + m[3]}
	case called.MatchString(line):
		m := called.FindStringSubmatch(line)
		if program := s.words(m[1]); len(program) == 1 && strings.HasSuffix(program[0], ".exe") {
			s.calls = append(s.calls, append(program, s.words(m[2])...))
		}
	}
}

// words are the values in an expression of quoted and bare words, variables and lists.
func (s *script) words(expression string) (out []string) {
	for _, m := range wordOf.FindAllStringSubmatch(expression, -1) {
		switch {
		case m[3] == "PSScriptRoot":
			out = append(out, ".")
		case m[3] != "":
			out = append(out, s.vars[m[3]]...)
		case m[2] != "":
			out = append(out, named.ReplaceAllStringFunc(m[2], func(v string) string { return strings.Join(s.vars[v[1:]], ",") }))
		default:
			out = append(out, m[1]+m[4])
		}
	}
	return slices.DeleteFunc(out, func(word string) bool { return word == "" })
}

var netshCall = regexp.MustCompile(`(?m)^\s*& netsh\.exe (.*?) \| Out-Null`)

// TestReversible: what Install-Node.ps1 changes in Defender's scans it prints with the way back, and Remove-Node.ps1 goes that way; what kubelet.exe
// changes in the firewall, it and Remove-Node.ps1 take back.
func TestReversible(t *testing.T) {
	text := map[string]string{}
	for _, name := range []string{"Install-Node.ps1", "Remove-Node.ps1"} {
		data, err := os.ReadFile("../../../../build/windows/" + name)
		if err != nil {
			t.Fatal(err)
		}
		text[name] = string(data)
	}
	host := netshsim.New(&calls.Log{})
	do := func(name string) {
		for _, call := range netshCall.FindAllStringSubmatch(text[name], -1) {
			var args []string
			for _, word := range regexp.MustCompile(`'[^']*'|\S+`).FindAllString(call[1], -1) {
				args = append(args, strings.Trim(word, "'"))
			}
			host.Run(args, nil) // of a rule that is not there nothing can be removed
		}
	}
	if len(netshCall.FindString(text["Install-Node.ps1"])) > 0 {
		t.Error("Install-Node.ps1 changes the firewall: the rules are the programs' own")
	}
	if calls := callsOf(t, text["Install-Node.ps1"], map[string][]string{"Kubeconfig": {"k.conf"}, "NoFirewall": {"true"}}); len(calls) != 8 ||
		!slices.Contains(calls[0], "--windows-firewall=false") || !slices.Contains(calls[1], "--windows-firewall=false") {
		t.Errorf("with -NoFirewall it calls %q", calls)
	}
	host.Run(strings.Fields("advfirewall firewall add rule name=others dir=in action=allow protocol=tcp localport=80"), nil)
	run := command.NewFake()
	run.Install("netsh", func(_ []byte, args []string) ([]byte, error) {
		script, err := os.ReadFile(args[1])
		content := string(script)
		out, code := host.Run(args, &content)
		if code != 0 {
			err = command.Exit(code, "")
		}
		return []byte(out), err
	})
	firewall := netsh.New(run)
	for name, back := range map[string]func() error{
		"--windows-firewall=false": func() error { return firewall.Admit(t.Context(), network.FirewallRule, "") },
		"Remove-Node.ps1":          func() error { do("Remove-Node.ps1"); return nil },
	} {
		for range 2 { // started again, there is still one
			if err := firewall.Admit(t.Context(), network.FirewallRule, `C:\k\kubelet.exe`); err != nil {
				t.Error(err)
			}
		}
		if rules := host.FirewallRules(); len(rules) != 2 || rules[1].Program != `C:\k\kubelet.exe` || rules[1].Action != "allow" || rules[1].Direction != "in" {
			t.Errorf("the firewall has %+v", rules)
		}
		if err := back(); err != nil || len(host.FirewallRules()) != 1 || host.FirewallRules()[0].Name != "others" {
			t.Errorf("%s: %v; it leaves %+v", name, err, host.FirewallRules())
		}
	}
	for _, want := range []string{"Add-MpPreference -ExclusionPath $DataRoot\n", `undo: Remove-MpPreference -ExclusionPath '$DataRoot'"`} {
		if !strings.Contains(text["Install-Node.ps1"], want) {
			t.Errorf("Install-Node.ps1 lacks %q", want)
		}
	}
	if !strings.Contains(text["Remove-Node.ps1"], "    Remove-MpPreference -ExclusionPath $DataRoot ") {
		t.Error("Remove-Node.ps1 leaves the data root out of Defender's scans")
	}
}
