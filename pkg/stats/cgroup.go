package stats

import (
	"bufio"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Sample is what one container has used when it was measured. Pointers are nil where the system does not tell.
type Sample struct {
	CPU                         time.Duration // since the container started
	Memory, WorkingSet          uint64        // bytes; the second without files' pages that were not used lately
	Limit                       uint64        // bytes of memory, 0: none
	Resident, Faults, MajFaults *uint64
	Swap, SwapLimit             *uint64 // bytes; a limit of nil: none
	Tasks                       *uint64
	Pressure                    map[string]Pressure // by "cpu", "memory", "io"; only on cgroup v2 with PSI
}

// proc measures by the files of a Linux kernel.
type proc struct {
	root   string // of /proc
	mounts []mount
}

// mount is one hierarchy of cgroups.
type mount struct {
	controllers string // ",cpu,cpuacct,"; of version 2 ","
	root, dir   string // the cgroup that is seen in dir
}

// newProc looks once where the hierarchies are mounted: they stay as long as the machine runs.
func newProc(root string) (*proc, error) {
	text, err := os.ReadFile(filepath.Join(root, "self/mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("cannot find the cgroups: %w", err)
	}
	return &proc{root: root, mounts: parseMountinfo(string(text))}, nil
}

// parseMountinfo finds the hierarchies in /proc/self/mountinfo (proc(5)). A name of version 1 such as "name=systemd" is kept.
func parseMountinfo(text string) (mounts []mount) {
	for line := range strings.Lines(text) {
		before, after, ok := strings.Cut(line, " - ")
		first, last := strings.Fields(before), strings.Fields(after)
		if !ok || len(first) < 5 || len(last) < 3 {
			continue
		}
		switch last[0] {
		case "cgroup2":
			mounts = append(mounts, mount{",", first[3], first[4]})
		case "cgroup":
			mounts = append(mounts, mount{"," + last[2] + ",", first[3], first[4]})
		}
	}
	return mounts
}

// parseCgroup gives the path of a controller from /proc/PID/cgroup (cgroups(7)); where no hierarchy of version 1 has it, that of
// version 2, whose controller is "".
func parseCgroup(text, controller string) (found, where string, ok bool) {
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		switch {
		case len(parts) < 3 || !strings.HasPrefix(parts[2], "/"):
		case parts[1] == "" && !ok:
			where, ok = parts[2], true
		case parts[1] != "" && strings.Contains(","+parts[1]+",", ","+controller+","):
			return controller, parts[2], true
		}
	}
	return "", where, ok
}

// dir is where a process's cgroup of a controller is seen, and whether it is of version 2.
func (p *proc) dir(cgroups, controller string) (dir string, v2 bool, err error) {
	found, where, ok := parseCgroup(cgroups, controller)
	want := ","
	if found != "" {
		want = "," + found + ","
	}
	for _, m := range p.mounts {
		if !ok || (want == ",") != (m.controllers == ",") || !strings.Contains(m.controllers, want) {
			continue
		}
		switch rest, below := strings.CutPrefix(where, strings.TrimSuffix(m.root, "/")+"/"); {
		case below:
			return filepath.Join(m.dir, path.Clean("/"+rest)), found == "", nil
		case where == m.root:
			return m.dir, found == "", nil
		}
	}
	return "", false, fmt.Errorf("cannot find the cgroup of controller %s", controller)
}

// measure reads the cgroup of the container to which a process belongs.
func (p *proc) measure(pid int) (s Sample, err error) {
	text, err := os.ReadFile(p.path(pid, "cgroup"))
	if err != nil {
		return s, fmt.Errorf("cannot find the cgroup of process %d: %w", pid, err)
	}
	for controller, read := range map[string][2]func(*Sample, string) error{
		"cpuacct": {cpuV1, cpuV2}, "memory": {memoryV1, memoryV2},
	} {
		dir, v2, err := p.dir(string(text), controller)
		if err != nil {
			return s, err
		}
		version := 0
		if v2 {
			version = 1
		}
		if err := read[version](&s, dir); err != nil {
			return s, err
		}
	}
	if dir, _, err := p.dir(string(text), "pids"); err == nil {
		if n, err := number(dir, "pids.current"); err == nil {
			s.Tasks = &n
		}
	}
	return s, nil
}

func (p *proc) path(pid int, name string) string {
	return filepath.Join(p.root, strconv.Itoa(pid), name)
}

func cpuV1(s *Sample, dir string) error {
	n, err := number(dir, "cpuacct.usage")
	s.CPU = time.Duration(n)
	return err
}

func cpuV2(s *Sample, dir string) error {
	values, err := table(dir, "cpu.stat")
	s.CPU = time.Duration(values["usage_usec"]) * time.Microsecond
	s.pressure(dir)
	return err
}

func memoryV1(s *Sample, dir string) (err error) {
	if s.Memory, err = number(dir, "memory.usage_in_bytes"); err != nil {
		return err
	}
	values, err := table(dir, "memory.stat")
	if err != nil {
		return err
	}
	s.WorkingSet = less(s.Memory, values["total_inactive_file"])
	s.Limit = bounded(values["hierarchical_memory_limit"])
	s.Resident, s.Faults, s.MajFaults = value(values, "total_rss"), value(values, "total_pgfault"), value(values, "total_pgmajfault")
	s.Swap = value(values, "total_swap") // absent where the kernel does not count it
	if both := bounded(values["hierarchical_memsw_limit"]); s.Swap != nil && both > 0 && s.Limit > 0 {
		limit := less(both, s.Limit)
		s.SwapLimit = &limit
	}
	return nil
}

func memoryV2(s *Sample, dir string) (err error) {
	if s.Memory, err = number(dir, "memory.current"); err != nil {
		return err
	}
	values, err := table(dir, "memory.stat")
	if err != nil {
		return err
	}
	s.WorkingSet = less(s.Memory, values["inactive_file"])
	s.Resident, s.Faults, s.MajFaults = value(values, "anon"), value(values, "pgfault"), value(values, "pgmajfault")
	s.Limit, _ = number(dir, "memory.max") // "max" is no number: no limit
	if n, err := number(dir, "memory.swap.current"); err == nil {
		s.Swap = &n
		if n, err := number(dir, "memory.swap.max"); err == nil {
			s.SwapLimit = &n
		}
	}
	return nil
}

// bounded takes the largest number of pages, by which version 1 says "no limit", for 0.
func bounded(limit uint64) uint64 {
	if limit >= 1<<62 {
		return 0
	}
	return limit
}

func less(a, b uint64) uint64 {
	if b > a {
		return 0
	}
	return a - b
}

func value(values map[string]uint64, name string) *uint64 {
	if n, ok := values[name]; ok {
		return &n
	}
	return nil
}

func number(dir, name string) (uint64, error) {
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return 0, fmt.Errorf("cannot measure: %w", err)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("cannot measure by %s: %w", name, err)
	}
	return n, nil
}

func table(dir, name string) (map[string]uint64, error) {
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return nil, fmt.Errorf("cannot measure: %w", err)
	}
	return parseTable(string(text)), nil
}

// parseTable reads lines of a name and a number; others are passed over.
func parseTable(text string) map[string]uint64 {
	values := map[string]uint64{}
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if n, err := strconv.ParseUint(rest, 10, 64); err == nil {
			values[name] = n
		}
	}
	return values
}

// Pressure is how long tasks waited for a resource: some of them, or all (the kernel's accounting/psi.rst).
type Pressure struct{ Some, Full Stall }

// Stall is in percent of the last 10, 60 and 300 seconds, and Total in microseconds.
type Stall struct {
	Avg10, Avg60, Avg300 float64
	Total                uint64
}

func (s *Sample) pressure(dir string) {
	for _, resource := range []string{"cpu", "memory", "io"} {
		if text, err := os.ReadFile(filepath.Join(dir, resource+".pressure")); err == nil {
			if s.Pressure == nil {
				s.Pressure = map[string]Pressure{}
			}
			s.Pressure[resource] = parsePressure(string(text))
		}
	}
}

func parsePressure(text string) (p Pressure) {
	scanner := bufio.NewScanner(strings.NewReader(text))
	for scanner.Scan() {
		kind, _, _ := strings.Cut(scanner.Text(), " ")
		var s Stall
		if n, _ := fmt.Sscanf(scanner.Text(), kind+" avg10=%f avg60=%f avg300=%f total=%d", &s.Avg10, &s.Avg60, &s.Avg300, &s.Total); n < 4 {
			continue
		}
		switch kind {
		case "some":
			p.Some = s
		case "full":
			p.Full = s
		}
	}
	return p
}
