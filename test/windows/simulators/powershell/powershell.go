// Package powershell simulates powershell.exe for flannel's calls: five cmdlets for routes and forwarding, in the form that flannel's
// pkg/powershell uses.
//
//	flanneld.exe --> shim powershell.exe --> PowerShell.Run --> state, calls.Log
//
// Everything else is refused and marked in the log. The rules follow Microsoft's pages of the cmdlets in the module NetTCPIP.
package powershell

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/winkube/winkube/test/windows/simulators/calls"
)

// Route is a route as Get-NetRoute shows it.
type Route struct {
	Interface int
	To        netip.Prefix
	Via       netip.Addr
}

// PowerShell is the simulated program and its state. It is safe for concurrent use.
type PowerShell struct {
	// OnRoute receives the routes that are added and removed, with the lock held; nil is allowed. An error refuses the
	// change.
	OnRoute func(added bool, r Route) error

	log *calls.Log

	mu         sync.Mutex
	routes     []Route
	forwarding map[int]bool // by interface index
}

// New returns a host without routes.
func New(log *calls.Log) *PowerShell { return &PowerShell{log: log, forwarding: map[int]bool{}} }

// String returns the state, sorted.
func (p *PowerShell) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var lines []string
	for _, r := range p.routes {
		lines = append(lines, fmt.Sprintf("route %s via %s on interface %d\n", r.To, r.Via, r.Interface))
	}
	for index, on := range p.forwarding {
		lines = append(lines, fmt.Sprintf("forwarding %t on interface %d\n", on, index))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// options precede the command in flannel's calls.
var options = []string{"-NoLogo", "-NoProfile", "-NonInteractive", "-Command"}

// wrapper matches the code that flannel puts around a command, once or twice. An error in the command reaches "os.Exit", which PowerShell does not
// know either, so that it exits with code 1.
var wrapper = regexp.MustCompile(`^\$ErrorActionPreference="Stop";try \{ (.*) \} catch \{ Write-Host \$_; os\.Exit\(-1\) \}$`)

// Run simulates powershell.exe with these arguments.
func (p *PowerShell) Run(args []string) (output string, code int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	command, err := unwrap(args)
	known := err == nil
	if known {
		output, known, err = p.command(command)
	}
	if err != nil {
		output, code = err.Error()+"\n", 1
	}
	p.log.Add(calls.Call{Service: "powershell", Function: "run", Args: []string{command}, Result: uint32(code), Detail: strings.TrimSpace(output), Unknown: !known})
	return output, code
}

func unwrap(args []string) (string, error) {
	if len(args) != len(options)+1 || !slices.Equal(args[:len(options)], options) {
		return strings.Join(args, " "), fmt.Errorf("the arguments %q are not simulated", args)
	}
	command := args[len(options)]
	for match := wrapper.FindStringSubmatch(command); match != nil; match = wrapper.FindStringSubmatch(command) {
		command = match[1]
	}
	return command, nil
}

const selected = ` \| Select-Object -Property IfIndex,DestinationPrefix,NextHop`

var (
	getAll  = regexp.MustCompile(`^ConvertTo-Json \(@\(Get-NetRoute` + selected + `\)\)$`)
	getOne  = regexp.MustCompile(`^ConvertTo-Json \(@\(Get-NetRoute -InterfaceIndex (\d+) -DestinationPrefix (\S+)` + selected + `\)\)$`)
	add     = regexp.MustCompile(`^New-NetRoute -InterfaceIndex (\d+) -DestinationPrefix (\S+) -NextHop +(\S+)$`)
	remove  = regexp.MustCompile(`^Remove-NetRoute -InterfaceIndex (\d+) -DestinationPrefix (\S+) -NextHop (\S+) -Verbose -Confirm:\$false$`)
	forward = regexp.MustCompile(`^Set-NetIPInterface -ifIndex (\d+) -AddressFamily IPv4 -Forwarding (Enabled|Disabled)$`)
)

// command executes one of the five cmdlets. The caller holds the lock.
func (p *PowerShell) command(text string) (output string, known bool, err error) {
	if getAll.MatchString(text) {
		return list(p.routes), true, nil
	}
	if match := getOne.FindStringSubmatch(text); match != nil {
		want, err := route(match[1], match[2], "0.0.0.0")
		if err != nil {
			return "", true, err
		}
		found := slices.DeleteFunc(slices.Clone(p.routes), func(r Route) bool { return r.Interface != want.Interface || r.To != want.To })
		if len(found) == 0 {
			return "", true, fmt.Errorf("no MSFT_NetRoute with DestinationPrefix %s", want.To)
		}
		return list(found), true, nil
	}
	if match := add.FindStringSubmatch(text); match != nil {
		return "", true, p.add(match)
	}
	if match := remove.FindStringSubmatch(text); match != nil {
		return "", true, p.remove(match)
	}
	if match := forward.FindStringSubmatch(text); match != nil {
		index, err := strconv.Atoi(match[1])
		if err == nil {
			p.forwarding[index] = match[2] == "Enabled"
		}
		return "", true, err
	}
	return "", false, fmt.Errorf("the command %q is not simulated", text)
}

func (p *PowerShell) add(match []string) error {
	r, err := route(match[1], match[2], match[3])
	if err != nil {
		return err
	}
	if slices.Contains(p.routes, r) {
		return fmt.Errorf("the MSFT_NetRoute already exists")
	}
	if p.OnRoute != nil {
		if err := p.OnRoute(true, r); err != nil {
			return err
		}
	}
	p.routes = append(p.routes, r)
	return nil
}

func (p *PowerShell) remove(match []string) error {
	r, err := route(match[1], match[2], match[3])
	if err != nil {
		return err
	}
	i := slices.Index(p.routes, r)
	if i < 0 {
		return fmt.Errorf("no matching MSFT_NetRoute")
	}
	if p.OnRoute != nil {
		if err := p.OnRoute(false, r); err != nil {
			return err
		}
	}
	p.routes = slices.Delete(p.routes, i, i+1)
	return nil
}

func route(index, to, via string) (r Route, err error) {
	if r.Interface, err = strconv.Atoi(index); err == nil {
		r.To, err = netip.ParsePrefix(to)
	}
	if err == nil {
		r.Via, err = netip.ParseAddr(via)
	}
	return r, err
}

// list returns routes in the format of ConvertTo-Json.
func list(routes []Route) string {
	type object struct {
		IfIndex                    int `json:"ifIndex"`
		DestinationPrefix, NextHop string
	}
	all := []object{}
	for _, r := range routes {
		all = append(all, object{r.Interface, r.To.String(), r.Via.String()})
	}
	data, err := json.Marshal(all)
	if err != nil {
		panic(err) // simple values
	}
	return string(data) + "\n"
}
