package netsh

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Allow is a rule of Windows Firewall that lets in what a program, or a service of Windows, listens on. Several may have one name.
type Allow struct {
	Name    string
	Program string   // absolute path; "": any
	Service string   // "": any
	Ports   []uint16 // empty: every protocol and port
	UDP     bool     // the Ports are of UDP, not of TCP
}

// Add is the line that makes the rule once more: rules are no set, and one of the same name stays beside it.
func (a Allow) Add() string {
	text := fmt.Sprintf("advfirewall firewall add rule name=%q dir=in action=allow", a.Name)
	if a.Program != "" {
		text += ` program="` + a.Program + `"`
	}
	if a.Service != "" {
		text += " service=" + a.Service
	}
	if len(a.Ports) > 0 {
		protocol := "tcp"
		if a.UDP {
			protocol = "udp"
		}
		text += " protocol=" + protocol + " localport=" + ranges(a.Ports)
	}
	return text
}

// Disallow is the line that removes the rules of a name.
func Disallow(name string) string {
	return fmt.Sprintf("advfirewall firewall delete rule name=%q", name)
}

// Allowed is the line that shows the rules of a name. Its output has the name where there are any.
func Allowed(name string) string { return fmt.Sprintf("advfirewall firewall show rule name=%q", name) }

// AdmitSelf is Admit for this program, or without in for no rule at all.
func (p *Program) AdmitSelf(ctx context.Context, name string, in bool, more ...Allow) error {
	if !in {
		return p.Admit(ctx, name, "")
	}
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot make the rule %q of Windows Firewall: %w", name, err)
	}
	return p.Admit(ctx, name, program, more...)
}

// Admit has one rule of that name let in what program, an absolute path, listens on, whatever that is at a time, and rules of the same name what
// more says; "": no rule has the name. What a former run left under it goes, rules of other names stay. An error: it is not so, as where the
// firewall's service is stopped.
func (p *Program) Admit(ctx context.Context, name, program string, more ...Allow) error {
	lines := []string{Disallow(name)} // fails where there is none
	if program != "" {
		lines = append(lines, Allow{Name: name, Program: program}.Add())
		for _, a := range more {
			a.Name = name
			lines = append(lines, a.Add())
		}
	}
	output, err := p.Script(ctx, append(lines, Allowed(name)))
	switch there := strings.Contains(output, name); {
	case there == (program != ""):
		return nil
	case there:
		return fmt.Errorf("cannot remove the rule %q of Windows Firewall: %w", name, errors.Join(err, errors.New(strings.TrimSpace(output))))
	}
	return fmt.Errorf("cannot make the rule %q of Windows Firewall: %w", name, errors.Join(err, errors.New(strings.TrimSpace(output))))
}

// ranges are sorted ports as netsh takes them: 80,443,30000-30002.
func ranges(ports []uint16) string {
	var parts []string
	for i := 0; i < len(ports); {
		last := i
		for last+1 < len(ports) && ports[last+1] == ports[last]+1 {
			last++
		}
		part := strconv.Itoa(int(ports[i]))
		if last > i {
			part += "-" + strconv.Itoa(int(ports[last]))
		}
		parts, i = append(parts, part), last+1
	}
	return strings.Join(parts, ",")
}
