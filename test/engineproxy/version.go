package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// version is an Engine API version: 1.41 is 41. Zero: none.
type version int

func (v version) String() string { return fmt.Sprintf("1.%d", int(v)) }

// parseVersion parses "1.41".
func parseVersion(text string) (version, bool) {
	var v version
	n, err := fmt.Sscanf(text, "1.%d", &v)
	return v, n == 1 && err == nil && v.String() == text
}

// face is the engine that the proxy simulates.
type face struct {
	min, max version
	release  string // of the engine
	// strict shapes responses as if each request used max: newer engines omit removed fields for every client version.
	strict bool
}

// faces are the engines that can be simulated. The oldest is the first with a Windows Server edition. The last
// represents engines from 29 on, the first that reject clients below 1.44.
var faces = map[string]face{
	"1.24":    {min: 12, max: 24, release: "1.12.6"},
	"1.41":    {min: 12, max: 41, release: "20.10.24"},
	"min1.44": {min: 44, max: 52, release: "29.0.0", strict: true},
}

func known() string { return strings.Join(slices.Sorted(maps.Keys(faces)), ", ") }
