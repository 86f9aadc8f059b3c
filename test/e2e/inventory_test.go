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

// inventory is everything on a host that pods leave behind when cleanup fails: names by kind.
type inventory map[string][]string

// inventoryOf lists what there is on a host now.
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

// cgroupsBelow lists the groups of a name in all hierarchies.
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

// more lists what is in have and was not before.
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

// agentFigures is what the kubelet costs.
type agentFigures struct {
	Goroutines, FDs int
	RSS             float64 // MiB
}

var metricLine = regexp.MustCompile(`(?m)^(go_goroutines|process_open_fds|process_resident_memory_bytes) ([0-9.e+]+)$`)

// figures asks a node's kubelet, which may have been started just now.
func (s *space) figures(node string) (out agentFigures) {
	s.Helper()
	s.eventually(30*time.Second, "figures of the kubelet", func(ctx context.Context) (err error) {
		out, err = figuresOf(ctx, node)
		return err
	})
	return out
}

// settledFigures asks an agent that was started a moment ago until it has made its watches: its number of goroutines has stopped growing.
func (s *space) settledFigures(node string) (most agentFigures) {
	s.Helper()
	for same := 0; same < 8; time.Sleep(time.Second) {
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
