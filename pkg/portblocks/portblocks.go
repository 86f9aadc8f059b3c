// Package portblocks counts the dynamic TCP ports that HNS reserves for load balancers without direct server return. It
// is pure.
//
//	netsh's dynamic range and excluded ranges --ParseDynamic, ParseExcluded--> Ports --Free--> Budget --Take--> error before HNS refuses
//
// HNS reserves blocks of 64 consecutive ports for each such load balancer and fails with 0x803b0013 if there is none
// (kubernetes/website#17930, Azure/AKS#1375). netsh lists reserved ports among the excluded ranges, as microsoft/SDN's
// collectlogs.ps1 counts them. An update of April 2020 (KB4550969) makes Server 2019 reserve fewer. So free blocks are
// measured, not derived from the number of load balancers.
package portblocks

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Size is the number of ports in a block.
const Size = 64

// Kept is the number of free blocks that load balancers must leave: the host and its pods open connections from these
// ports too.
const Kept = 16

// Commands that list the ports. The language of Windows changes their text but not the numbers.
const (
	ListDynamic  = "interface ipv4 show dynamicport tcp"
	ListExcluded = "interface ipv4 show excludedportrange protocol=tcp"
)

// Ports is the dynamic range of a host and the excluded ranges of all ports: first and last.
type Ports struct {
	First, Count int
	Excluded     [][2]int
}

// Total returns the number of blocks in the whole range.
func (p Ports) Total() int { return p.Count / Size }

// Free returns the number of free blocks between the excluded ranges. Ports of open connections count as free.
func (p Ports) Free() (blocks int) {
	taken := slices.Clone(p.Excluded)
	slices.SortFunc(taken, func(a, b [2]int) int { return a[0] - b[0] })
	next, end := p.First, p.First+p.Count
	for _, t := range taken {
		if first := min(t[0], end); first > next {
			blocks += (first - next) / Size
		}
		next = max(next, t[1]+1)
	}
	return blocks + max(end-next, 0)/Size
}

// ErrNone says that no block is left for a load balancer.
var ErrNone = errors.New("no dynamic TCP ports left")

// Budget is what one Sync may still reserve. The zero Budget allows everything: what is free is unknown.
type Budget struct {
	known       bool
	left, total int
}

// NewBudget returns the Budget of a host with these Ports.
func NewBudget(p Ports) Budget { return Budget{true, p.Free() - Kept, p.Total()} }

// Take reserves one block, or returns an error that says what to change.
func (b *Budget) Take() error {
	if !b.known {
		return nil
	}
	if b.left <= 0 {
		return fmt.Errorf("%w: HNS would reserve %d ports for the Service's load balancer, and %d of the %d blocks of that size are kept for connections; "+
			"want direct server return (--enable-dsr), or a wider range: netsh int ipv4 set dynamicport tcp start=33000 num=32536", ErrNone, Size, Kept, b.total)
	}
	b.left--
	return nil
}

// ParseDynamic parses the output of ListDynamic in any language: two lines that end with a number, the first port and
// the number of ports.
func ParseDynamic(text string) (Ports, error) {
	var numbers []int
	for line := range strings.Lines(text) {
		_, value, found := strings.Cut(line, ":")
		if number, err := strconv.Atoi(strings.TrimSpace(value)); found && err == nil {
			numbers = append(numbers, number)
		}
	}
	if len(numbers) != 2 || numbers[0] < 1 || numbers[1] < 1 || numbers[0]+numbers[1] > 1<<16 {
		return Ports{}, fmt.Errorf("netsh named no dynamic port range: %q", strings.TrimSpace(text))
	}
	return Ports{First: numbers[0], Count: numbers[1]}, nil
}

// ParseExcluded parses the output of ListExcluded in any language: lines that begin with two numbers.
func ParseExcluded(text string) (out [][2]int) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		first, err1 := strconv.Atoi(fields[0])
		last, err2 := strconv.Atoi(fields[1])
		if err1 == nil && err2 == nil && first > 0 && first <= last && last <= 65535 {
			out = append(out, [2]int{first, last})
		}
	}
	return out
}
