package netsh

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Allow is a Windows Firewall rule that allows inbound traffic to a program or a Windows service. Several rules may
// have one name.
type Allow struct {
	Name    string
	Program string   // absolute path; "": any
	Service string   // "": any
	Ports   []uint16 // empty: all protocols and ports
	UDP     bool     // Ports are UDP ports, not TCP
}

// Add returns the command that adds the rule. Adding it twice makes two rules, even with the same name.
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

// Block is a Windows Firewall rule that blocks inbound traffic to a program or a Windows service at some of the host's
// addresses. It takes precedence over rules that allow (Microsoft, "Windows Firewall rules").
type Block struct {
	Name    string
	Program string   // absolute path, or System for the kernel; "": any
	Service string   // "": any
	At      []string // addresses, prefixes, and ranges first-last
}

// Add returns the command that adds the rule.
func (b Block) Add() string {
	text := fmt.Sprintf("advfirewall firewall add rule name=%q dir=in action=block", b.Name)
	if b.Program != "" {
		text += ` program="` + b.Program + `"`
	}
	if b.Service != "" {
		text += " service=" + b.Service
	}
	return text + " localip=" + strings.Join(b.At, ",")
}

// Disallow returns the command that removes all rules with a name.
func Disallow(name string) string {
	return fmt.Sprintf("advfirewall firewall delete rule name=%q", name)
}

// Allowed returns the command that lists the rules with a name. Its output contains the name if there are any.
func Allowed(name string) string { return fmt.Sprintf("advfirewall firewall show rule name=%q", name) }

// AdmitSelf is Admit for this program; without in, it removes the rules.
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

// Admit replaces all rules of that name with one that allows inbound traffic to program, an absolute path, on whatever
// it listens, and with the rules in more. With program "" it only removes them. Rules of other names stay. It returns
// an error if the rules are not as wanted, for example because the firewall's service is stopped.
func (p *Program) Admit(ctx context.Context, name, program string, more ...Allow) error {
	lines := []string{Disallow(name)} // fails if there is none
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

// ranges formats sorted ports for netsh: 80,443,30000-30002.
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
