//go:build linux

package traffic

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	rounds    = 5
	perRound  = 700 * time.Millisecond
	loadTime  = perRound + perRound/10 // including the warm-up
	manyPorts = 1000
	// heldConns is how many connections are held open. Each takes two files in the relay, which may open 20,000 here
	// and lets one client use at most half of its connections.
	heldConns = 3500
	// heldNaive is the number for the naive relay, which also needs two pipes per connection.
	heldNaive = 3000
)

// side is one path from the client to the server.
type side struct {
	name      string
	namespace string
	addr      string // of the front
	udp       bool
	cgroup    string                // cgroup of the client; "": this process's own
	missing   string                // why it is not measured
	resident  func() (int64, error) // resident memory of the program in the middle in bytes; nil: no such program
}

// load is one kind of traffic and its row of the table.
type load struct {
	name, unit string
	mode       string
	args       []string
	udp        bool
	link       bool // the client is on another host
	scale      float64
	target     string
	figures    []string // names of the figures, if one run has several
}

func loads() []load {
	return []load{
		{name: "bulk, 1 connection", unit: "%.1f Gbit/s", mode: "bulk", args: []string{"1"}, scale: 1e-9, target: ">= 0.8 of direct"},
		{name: "bulk, 8 connections", unit: "%.1f Gbit/s", mode: "bulk", args: []string{"8"}, scale: 1e-9},
		{name: "bulk over " + linkRate, unit: "%.3f Gbit/s", mode: "bulk", args: []string{"1"}, link: true, scale: 1e-9, target: ">= 0.98 of direct"},
		{name: "keep-alive, 32 connections", unit: "%.0f/s", mode: "requests", args: []string{"32"}, scale: 1, target: ">= HAProxy's"},
		{name: "new connections, 16 clients", unit: "%.0f/s", mode: "connects", args: []string{"16"}, scale: 1, target: ">= 0.9 of HAProxy's"},
		{name: "UDP, 32 clients", unit: "%.0f/s", mode: "udp", args: []string{"32"}, udp: true, scale: 1, target: ">= 0.5 of direct"},
		{name: "UDP, a port for each question", unit: "%.0f/s", mode: "dns", args: []string{"16"}, udp: true, scale: 1},
	}
}

// Run measures everything and prints the table. root is the repository's root, which contains the lab's programs. It
// needs root privileges, and changes nothing outside its network namespaces. modes, if any, are the only loads to
// measure; others are paths of other builds of our proxy to compare.
func Run(ctx context.Context, root string, others []string, out io.Writer, modes []string) error {
	rig, err := newRig(ctx, root, others)
	if err != nil {
		return err
	}
	defer rig.close()
	for _, s := range rig.sides {
		if s.missing != "" {
			fmt.Fprintf(out, "%s cannot be measured: %s\n", s.name, s.missing)
		}
	}
	t := table{out: out, sides: rig.sides}
	t.header()
	var rate float64
	wanted := func(mode string) bool { return len(modes) == 0 || slices.Contains(modes, mode) }
	if wanted("memory") { // first: later it would reuse memory of earlier loads
		if err := rig.memory(ctx, &t); err != nil {
			return err
		}
	}
	for _, l := range loads() {
		if !wanted(l.mode) {
			continue
		}
		medians, err := rig.interleaved(ctx, l)
		if err != nil {
			return err
		}
		t.row(l.name, l.unit, l.target, medians[0])
		t.row("  with both processors at work", l.unit, "", medians[1])
		if l.mode == "requests" {
			rate = medians[0][len(rig.sides)-1] / 2 // half of our relay's maximum rate
		}
	}
	if rate > 0 && wanted("latency") {
		if err := rig.latency(ctx, &t, rate); err != nil {
			return err
		}
	}
	if !wanted("memory") {
		return nil
	}
	return rig.frontMemory(ctx, &t)
}

// latency measures all sides at rate requests per second.
func (r *rig) latency(ctx context.Context, t *table, rate float64) error {
	half := load{mode: "latency", args: []string{strconv.Itoa(int(rate))}, scale: 1e6, figures: []string{"p50", "p99"}}
	medians, err := r.interleaved(ctx, half)
	if err != nil {
		return err
	}
	for i, target := range []string{"<= 40 us added", "<= 150 us added"} {
		t.row(fmt.Sprintf("latency at %.0f/s, %s", rate, half.figures[i]), "%.0f us", target, medians[i])
		added := slices.Clone(medians[i])
		for j := range added {
			if added[j] != 0 {
				added[j] -= medians[i][0]
			}
		}
		t.row("  of it added", "%.0f us", "", added)
	}
	return nil
}

// interleaved runs one load on all sides in turn, and returns the sides' medians for each of its figures; 0: not
// measured. It appends what the first figure, a rate, would be if client, server and proxy used all processors without
// waiting. That is computed from their processor time, which other load on the machine hardly affects.
func (r *rig) interleaved(ctx context.Context, l load) ([][]float64, error) {
	count := max(1, len(l.figures))
	samples := make([][][]float64, count+1)
	for i := range samples {
		samples[i] = make([][]float64, len(r.sides))
	}
	for round := range rounds {
		for i := range r.sides {
			j := (i + round) % len(r.sides) // rotate, so that no side is always first
			s := r.sides[j]
			if s.missing != "" || l.udp && !s.udp {
				continue
			}
			got, used, err := r.client(ctx, s, l)
			if err != nil {
				return nil, fmt.Errorf("%s through %s: %w", l.mode, s.name, err)
			}
			if len(got) != count {
				return nil, fmt.Errorf("%s through %s: got %d figures, want %d", l.mode, s.name, len(got), count)
			}
			for k, v := range got {
				samples[k][j] = append(samples[k][j], v*l.scale)
			}
			samples[count][j] = append(samples[count][j], got[0]*l.scale*loadTime.Seconds()*float64(runtime.NumCPU())/used)
		}
	}
	medians := make([][]float64, len(samples))
	for k := range samples {
		for _, list := range samples[k] {
			medians[k] = append(medians[k], median(list))
		}
	}
	return medians, nil
}

func median(list []float64) float64 {
	if len(list) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(list))[len(list)/2]
}

// memory measures the memory of an idle open connection in each proxy.
func (r *rig) memory(ctx context.Context, t *table) error {
	perConn := make([]float64, len(r.sides))
	for i, s := range r.sides {
		if s.resident == nil || s.missing != "" {
			continue
		}
		before, err := s.resident()
		if err != nil {
			return err
		}
		count := heldConns
		if s.name == naiveName {
			count = heldNaive
		}
		held, err := r.hold(ctx, s, count)
		if err != nil {
			return fmt.Errorf("%d connections through %s: %w", count, s.name, err)
		}
		after, err := s.resident()
		held()
		if err != nil {
			return err
		}
		perConn[i] = float64(after-before) / float64(count) / 1024
	}
	t.row(fmt.Sprintf("memory of one of %d open", heldConns), "%.1f KiB", "<= 12 KiB", perConn)
	return nil
}

// frontMemory measures the memory of a front in each proxy.
func (r *rig) frontMemory(ctx context.Context, t *table) error {
	perFront, err := r.fronts(ctx)
	if err != nil {
		return err
	}
	t.row(fmt.Sprintf("memory of a front (of %d)", manyPorts), "%.1f KiB", "<= 8 KiB", perFront)
	return nil
}

// table prints rows as they are added.
type table struct {
	out   io.Writer
	sides []side
}

func (t *table) header() {
	fmt.Fprintf(t.out, "\n%-36s", "")
	for _, s := range t.sides {
		fmt.Fprintf(t.out, " %13s", s.name)
	}
	fmt.Fprintf(t.out, " %10s %10s  %s\n", "to direct", "to HAProxy", "goal")
}

// row prints the sides' figures and the ratios of the last one (ours) to the first (direct) and the second (HAProxy).
func (t *table) row(name, unit, goal string, figures []float64) {
	fmt.Fprintf(t.out, "%-36s", name)
	for _, v := range figures {
		cell := ""
		if v != 0 {
			cell = fmt.Sprintf(unit, v)
		}
		fmt.Fprintf(t.out, " %13s", cell)
	}
	ours := figures[len(figures)-1]
	for _, other := range figures[:2] {
		ratio := ""
		if other != 0 && ours != 0 {
			ratio = fmt.Sprintf("%.2f", ours/other)
		}
		fmt.Fprintf(t.out, " %10s", ratio)
	}
	fmt.Fprintln(t.out, strings.TrimRight("  "+goal, " "))
}
