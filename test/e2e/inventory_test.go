package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/winkube/winkube/test/lab"
)

// inventory has everything on a host that pods leave behind if cleanup fails: names by kind.
type inventory map[string][]string

// inventoryOf lists what is on a host now.
func inventoryOf(ctx context.Context, host *lab.Host) (inventory, error) {
	have := inventory{}
	list, err := host.Engine().Containers(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range list {
		have["containers"] = append(have["containers"], c.State+" "+strings.Join(c.Names, " "))
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if len(fields) > 4 && (strings.HasPrefix(fields[4], host.Dir()+"/") || strings.HasPrefix(fields[4], host.RunDir()+"/")) {
			have["mounts"] = append(have["mounts"], fields[4])
		}
	}
	links, err := host.Exec(ctx, "ip", "-o", "link", "show", "type", "veth")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(links) {
		have["network interfaces"] = append(have["network interfaces"], strings.Fields(line)[1])
	}
	for kind, glob := range map[string][]string{
		"pod directories": {host.Dir("kubelet", "pods", "*")},
		"names of logs":   {host.Dir("log", "pods", "*"), host.Dir("log", "containers", "*")},
	} {
		for _, pattern := range glob {
			found, err := filepath.Glob(pattern)
			if err != nil {
				return nil, err
			}
			have[kind] = append(have[kind], found...)
		}
	}
	have["cgroups"] = cgroupsBelow(host.Namespace())
	for kind := range have {
		slices.Sort(have[kind])
	}
	return have, nil
}

// cgroupsBelow lists the cgroups below a name in all hierarchies.
func cgroupsBelow(name string) []string {
	var groups []string
	roots, _ := filepath.Glob("/sys/fs/cgroup/*")
	for _, root := range append(roots, "/sys/fs/cgroup") {
		_ = filepath.WalkDir(filepath.Join(root, name), func(path string, entry fs.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				groups = append(groups, path)
			}
			return nil
		})
	}
	slices.Sort(groups)
	return slices.Compact(groups)
}

// more lists what is in have but not in before.
func (before inventory) more(have inventory) []string {
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(have)) {
		for _, item := range have[kind] {
			if !slices.Contains(before[kind], item) {
				out = append(out, kind+": "+item)
			}
		}
	}
	return out
}

// agentFigures is the kubelet's resource usage.
type agentFigures struct {
	Goroutines, FDs int
	RSS             float64 // MiB
}

var metricLine = regexp.MustCompile(`(?m)^(go_goroutines|process_open_fds|process_resident_memory_bytes) ([0-9.e+]+)$`)

// figures reads a node's kubelet metrics; the kubelet may have just started.
func (s *space) figures(node string) (out agentFigures) {
	s.Helper()
	s.eventually(time.Minute, "figures of the kubelet", func(ctx context.Context) (err error) {
		out, err = figuresOf(ctx, node)
		return err
	})
	return out
}

// settledFigures waits for a recently started agent to set up its watches: until its number of goroutines stops
// growing.
func (s *space) settledFigures(node string) (most agentFigures) {
	s.Helper()
	for same := 0; same < 12; time.Sleep(time.Second) {
		now := s.figures(node)
		if same++; now.Goroutines > most.Goroutines {
			most, same = now, 0
		}
	}
	return most
}

func figuresOf(ctx context.Context, node string) (agentFigures, error) {
	var out agentFigures
	data, err := client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/" + node + "/proxy/metrics").DoRaw(ctx)
	if err != nil {
		return out, err
	}
	found := metricLine.FindAllStringSubmatch(string(data), -1)
	if len(found) != 3 {
		return out, fmt.Errorf("the kubelet's metrics lack some expected figures: %v", found)
	}
	for _, match := range found {
		value, err := strconv.ParseFloat(match[2], 64)
		if err != nil {
			return out, err
		}
		switch match[1] {
		case "go_goroutines":
			out.Goroutines = int(value)
		case "process_open_fds":
			out.FDs = int(value)
		default:
			out.RSS = value / (1 << 20)
		}
	}
	return out, nil
}
