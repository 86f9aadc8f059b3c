package powershell

import (
	"fmt"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/windows/simulators/calls"
)

// TestRun: the five cmdlets work as flannel writes them, and everything else is refused.
func TestRun(t *testing.T) {
	log := &calls.Log{}
	p := New(log)
	wrap := func(command string) string {
		return fmt.Sprintf(`$ErrorActionPreference="Stop";try { %s } catch { Write-Host $_; os.Exit(-1) }`, command)
	}
	const get = "ConvertTo-Json (@(Get-NetRoute -InterfaceIndex 3 -DestinationPrefix 10.244.2.0/24 | Select-Object -Property IfIndex,DestinationPrefix,NextHop))"
	const row = `[{"ifIndex":3,"DestinationPrefix":"10.244.2.0/24","NextHop":"10.1.0.11"}]` + "\n"
	for _, c := range []struct {
		command, output string
		code            int
	}{
		{wrap(wrap(get)), "no MSFT_NetRoute with", 1},
		{wrap("New-NetRoute -InterfaceIndex 3 -DestinationPrefix 10.244.2.0/24 -NextHop  10.1.0.11"), "", 0},
		{wrap("New-NetRoute -InterfaceIndex 3 -DestinationPrefix 10.244.2.0/24 -NextHop  10.1.0.11"), "already exists", 1},
		{wrap(wrap(get)), row, 0},
		{wrap(wrap("ConvertTo-Json (@(Get-NetRoute | Select-Object -Property IfIndex,DestinationPrefix,NextHop))")), row, 0},
		{wrap("Set-NetIPInterface -ifIndex 3 -AddressFamily IPv4 -Forwarding Enabled"), "", 0},
		{wrap("Remove-NetRoute -InterfaceIndex 3 -DestinationPrefix 10.244.2.0/24 -NextHop 10.1.0.12 -Verbose -Confirm:$false"), "no matching", 1},
		{wrap("Remove-NetRoute -InterfaceIndex 3 -DestinationPrefix 10.244.2.0/24 -NextHop 10.1.0.11 -Verbose -Confirm:$false"), "", 0},
	} {
		output, code := p.Run(append(append([]string(nil), options...), c.command))
		if code != c.code || !strings.Contains(output, c.output) || c.output == "" && output != "" {
			t.Errorf("%s: %d, %q; want %d, %q", c.command, code, output, c.code, c.output)
		}
	}
	if got := p.String(); got != "forwarding true on interface 3\n" {
		t.Errorf("afterwards: %s", got)
	}
	if unknown := log.Unknown(); len(unknown) > 0 {
		t.Errorf("not known: %v", unknown)
	}
	for _, args := range [][]string{append(append([]string(nil), options...), "Restart-Computer"), {"-Command", "exit"}} {
		if output, code := p.Run(args); code == 0 || !strings.Contains(output, "not simulated") {
			t.Errorf("%q: %d, %q", args, code, output)
		}
	}
	if unknown := log.Unknown(); len(unknown) != 2 {
		t.Errorf("not marked: %v", unknown)
	}
}
