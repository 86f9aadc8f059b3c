package programs

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/command/commandtest"
	"github.com/winkube/winkube/pkg/netsh"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/test/windows/simulators/calls"
	netshsim "github.com/winkube/winkube/test/windows/simulators/netsh"
)

// script interprets the PowerShell that the scripts in build/windows use to call our programs: parameters, word lists, paths, conditions on
// parameters. It skips everything else, such as firewall commands.
type script struct {
	*testing.T
	vars  map[string][]string
	calls [][]string // programs with their arguments
	ended bool
}

var (
	parameter = regexp.MustCompile(`\[(?:string(?:\[\])?|switch)\] \$(\w+)(?: = (.+?))?,?$`)
	pathOf    = regexp.MustCompile(`^\$(\w+) = Join-Path (\$\w+) '([^']+)'$`)
	pathsOf   = regexp.MustCompile(`^\$(\w+), \$(\w+) = \(Join-Path (\$\w+) '([^']+)'\), \(Join-Path \$\w+ '([^']+)'\)$`)
	assigned  = regexp.MustCompile(`^\$(\w+) (\+?=) (@\(.*\)(?: \+ \$\w+)?|".*"|'.*')$`)
	chosen    = regexp.MustCompile(`^\$(\w+) = if \(\$(\w+)\) \{ ('\w+') \} else \{ ('\w+') \}$`)
	called    = regexp.MustCompile(`^& (\$\w+) (.+?)(?:; exit \$LASTEXITCODE)?$`)
	inLine    = regexp.MustCompile(`^if \((\$.+?)\) \{ (.+) \}$`)
	condition = regexp.MustCompile(`^if \((\$.+)\) \{$`)
	wordOf    = regexp.MustCompile(`'([^']*)'|"([^"]*)"|\$(\w+)|([\w.]+)`)
	named     = regexp.MustCompile(`\$(\w+)`)
)

// callsOf returns the calls of our programs that a script makes with the given parameters.
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

// run executes lines; a block ends with a } at its own depth.
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
		if m := condition.FindStringSubmatch(line); m != nil && s.holds(m[1]) {
			s.run(block)
		}
		i = end
	}
}

// holds evaluates a condition: that one of some parameters is given, or that the previous program exited with 0.
func (s *script) holds(text string) bool {
	if text == "$LASTEXITCODE -eq 0" {
		return true
	}
	for _, m := range named.FindAllStringSubmatch(text, -1) {
		if strings.Join(s.vars[m[1]], "") != "" {
			return true
		}
	}
	return false
}

func (s *script) do(line string) {
	switch m := assigned.FindStringSubmatch(line); {
	case line == "exit $LASTEXITCODE":
		s.ended = true
	case inLine.MatchString(line):
		if m := inLine.FindStringSubmatch(line); s.holds(m[1]) {
			s.do(m[2])
		}
	case m != nil && m[2] == "+=":
		s.vars[m[1]] = append(s.vars[m[1]], s.words(m[3])...)
	case m != nil:
		s.vars[m[1]] = s.words(m[3])
	case chosen.MatchString(line):
		m := chosen.FindStringSubmatch(line)
		s.vars[m[1]] = s.words(m[4])
		if s.holds("$" + m[2]) {
			s.vars[m[1]] = s.words(m[3])
		}
	case pathOf.MatchString(line):
		m := pathOf.FindStringSubmatch(line)
		s.vars[m[1]] = []string{strings.Join(s.words(m[2]), "") + `\` + m[3]}
	case pathsOf.MatchString(line):
		m := pathsOf.FindStringSubmatch(line)
		for i := range 2 {
			s.vars[m[1+i]] = []string{strings.Join(s.words(m[3]), "") + `\` + m[4+i]}
		}
	case called.MatchString(line):
		m := called.FindStringSubmatch(line)
		if program := s.words(m[1]); len(program) == 1 && strings.HasSuffix(program[0], ".exe") {
			s.calls = append(s.calls, append(program, s.words(m[2])...))
		}
	}
}

// words returns the values of an expression of quoted and bare words, variables and lists.
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

// TestScripts: the scripts are short and leave everything important to kubelet.exe, because no PowerShell runs them here. They compare the checksum
// before they use anything in an archive.
func TestScripts(t *testing.T) {
	read := func(name string) string {
		data, err := os.ReadFile("../../../../build/windows/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return strings.ReplaceAll(string(data), "\r\n", "\n")
	}
	for name, most := range map[string]int{"Install-Node.ps1": 40, "Remove-Node.ps1": 40} {
		text := read(name)
		if n := strings.Count(text, "\n"); n > most {
			t.Errorf("%s has %d lines, want at most %d", name, n, most)
		}
		for _, word := range []string{"netsh", "icacls", "New-Item", "MpPreference", "New-Service", "Start-Service"} {
			if strings.Contains(text, word) {
				t.Errorf("%s calls %s: kubelet.exe node join and leave do what matters", name, word)
			}
		}
	}
	text := read("Install-Node.ps1")
	sum, use := strings.Index(text, "-Algorithm SHA256).Hash -ne $SHA256) { throw"), strings.Index(text, "Expand-Archive")
	if sum < 0 || use < sum {
		t.Error("Install-Node.ps1 unpacks an archive before it has compared its sum")
	}
}

// TestFirewallReversible: there is one kubelet rule however often it starts. The flag and kubelet.exe node leave, which call the same function,
// remove it; foreign rules stay.
func TestFirewallReversible(t *testing.T) {
	host := netshsim.New(&calls.Log{})
	host.Run(strings.Fields("advfirewall firewall add rule name=others dir=in action=allow protocol=tcp localport=80"), nil)
	run := commandtest.New()
	run.Install("netsh", func(_ []byte, args []string) ([]byte, error) {
		script, err := os.ReadFile(args[1])
		content := string(script)
		out, code := host.Run(args, &content)
		if code != 0 {
			err = commandtest.Exit(code, "")
		}
		return []byte(out), err
	})
	firewall := netsh.New(run)
	back := func() error { return firewall.Admit(t.Context(), network.FirewallRule, "") }
	for range 2 {
		for range 2 { // restarts add no second rule
			if err := firewall.Admit(t.Context(), network.FirewallRule, `C:\k\kubelet.exe`); err != nil {
				t.Error(err)
			}
		}
		if rules := host.FirewallRules(); len(rules) != 2 || rules[1].Program != `C:\k\kubelet.exe` || rules[1].Action != "allow" || rules[1].Direction != "in" {
			t.Errorf("the firewall has %+v", rules)
		}
		if err := back(); err != nil || len(host.FirewallRules()) != 1 || host.FirewallRules()[0].Name != "others" {
			t.Errorf("%v; it leaves %+v", err, host.FirewallRules())
		}
	}
}
