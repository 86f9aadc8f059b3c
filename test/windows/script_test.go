package windows

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/windows/calls"
	"github.com/winkube/winkube/test/windows/netsh"
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

// TestReversible: what Install-Node.ps1 changes in the firewall and in Defender's scans it prints with the way back, and Remove-Node.ps1 goes that way.
func TestReversible(t *testing.T) {
	text := map[string]string{}
	for _, name := range []string{"Install-Node.ps1", "Remove-Node.ps1"} {
		data, err := os.ReadFile("../../build/windows/" + name)
		if err != nil {
			t.Fatal(err)
		}
		text[name] = string(data)
	}
	host := netsh.New(&calls.Log{})
	do := func(name string) {
		for _, call := range netshCall.FindAllStringSubmatch(text[name], -1) {
			var args []string
			for _, word := range regexp.MustCompile(`'[^']*'|\S+`).FindAllString(call[1], -1) {
				args = append(args, strings.Trim(word, "'"))
			}
			host.Run(args, nil) // of a rule that is not there nothing can be removed
		}
	}
	printed := regexp.MustCompile(`Write-Host 'firewall: .* is open; back: netsh (.*)'`).FindStringSubmatch(text["Install-Node.ps1"])
	if printed == nil {
		t.Fatal("Install-Node.ps1 does not print the way back from its firewall rule")
	}
	for name, back := range map[string]func(){
		"what is printed": func() { host.Run([]string{"-f", "x"}, &printed[1]) },
		"Remove-Node.ps1": func() { do("Remove-Node.ps1") },
	} {
		for range 2 { // said again, there is still one
			do("Install-Node.ps1")
		}
		if rules := host.FirewallRules(); len(rules) != 1 || rules[0].LocalPort != "10250" || rules[0].Action != "allow" || rules[0].Direction != "in" {
			t.Errorf("the firewall has %+v", rules)
		}
		if back(); len(host.FirewallRules()) != 0 {
			t.Errorf("%s leaves %+v", name, host.FirewallRules())
		}
	}
	for _, want := range []string{"Add-MpPreference -ExclusionPath $DataRoot\n", `back: Remove-MpPreference -ExclusionPath '$DataRoot'"`} {
		if !strings.Contains(text["Install-Node.ps1"], want) {
			t.Errorf("Install-Node.ps1 lacks %q", want)
		}
	}
	if !strings.Contains(text["Remove-Node.ps1"], "    Remove-MpPreference -ExclusionPath $DataRoot ") {
		t.Error("Remove-Node.ps1 leaves the data root out of Defender's scans")
	}
}
