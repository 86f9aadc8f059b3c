package dockertest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Dump prints the engine's state as text, in an order that does not depend on ids: created networks, images, and containers with their namespaces and
// mounts.
func (e *Engine) Dump() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []string
	for _, s := range e.networks {
		if !slices.Contains([]string{"bridge", "host", "none", "nat"}, s.Name) {
			line := fmt.Sprintf("network %s %s", s.Name, s.Driver)
			for _, config := range s.IPAM.Config {
				line += " " + config.Subnet + " gateway " + config.Gateway
			}
			out = append(out, line)
		}
	}
	for _, img := range e.images {
		out = append(out, "image "+strings.Join(orNone(img.Names), " "))
	}
	slices.Sort(out)
	boxes := slices.SortedFunc(maps.Values(e.containers), func(a, b *box) int { return strings.Compare(a.name, b.name) })
	for _, b := range boxes {
		line := fmt.Sprintf("container %s %s", b.name, b.state())
		if b.state() == "exited" || b.err != "" {
			line += fmt.Sprintf(" exit=%d", b.exitCode)
		}
		if other := e.lookup(b.host.NetworkMode.ConnectedContainer()); other != nil {
			line += " net=" + other.name
		} else {
			line += " net=" + string(b.host.NetworkMode)
		}
		if b.address != "" {
			line += " ip=" + b.address
		}
		if b.err != "" {
			line += fmt.Sprintf(" error=%q", b.err)
		}
		out = append(out, line)
		for _, bind := range b.host.Binds {
			out = append(out, "  bind "+bind)
		}
	}
	if len(out) == 0 {
		return ""
	}
	return strings.Join(out, "\n") + "\n"
}
