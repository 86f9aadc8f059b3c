package main

import (
	"fmt"
	"slices"
	"time"
)

// durations are measured times in milliseconds.
type durations []float64

func inMS(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// at returns the p-th percentile; p is from 0 to 1.
func (d durations) at(p float64) float64 {
	if len(d) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(d))
	return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)]
}

// Formats of a row's units, with as many digits as are significant.
const (
	ms      = "%.0f ms"
	percent = "%.2f %%"
	mib     = "%.0f MiB"
)

func header() {
	fmt.Printf("\n%-40s %12s %12s %12s %12s %12s\n", "", "bare engine", "upstream", "winkube", "to bare", "to upstream")
}

// row prints one figure of the three sides and our ratios to the others; 0: not measured.
func row(name, unit string, bare, upstream, ours float64) {
	cell := func(v float64) string {
		if v == 0 {
			return ""
		}
		return fmt.Sprintf(unit, v)
	}
	ratio := func(to float64) string {
		if to == 0 || ours == 0 {
			return ""
		}
		return fmt.Sprintf("%.2f", ours/to)
	}
	fmt.Printf("%-40s %12s %12s %12s %12s %12s\n", name, cell(bare), cell(upstream), cell(ours), ratio(bare), ratio(upstream))
}
