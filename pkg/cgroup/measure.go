package cgroup

import (
	"fmt"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Sample is one cgroup's use at the time of measurement. Pointers are nil if the system does not report the value.
type Sample struct {
	CPU                         time.Duration // since the cgroup was created
	Memory, WorkingSet          uint64        // bytes; WorkingSet excludes page cache that was not used recently
	Limit                       uint64        // memory limit in bytes; 0: none
	Resident, Faults, MajFaults *uint64
	Swap, SwapLimit             *uint64 // bytes; nil SwapLimit: none
	Tasks                       *uint64
	Pressure                    map[string]Pressure // by "cpu", "memory", "io"; only on cgroup v2 with PSI
	cache                       uint64              // bytes of page cache, for Detail
	throttling                  *throttling         // for Detail; nil: not read
}

// Reader measures processes' cgroups from files of a Linux kernel.
type Reader struct {
	proc   string // /proc
	mounts []mount
}

// NewReader reads once where the hierarchies are mounted: this does not change while the machine runs. proc is /proc.
func NewReader(proc string) (*Reader, error) {
	text, err := disk{}.read(filepath.Join(proc, "self/mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("cannot find the cgroups: %w", err)
	}
	return &Reader{proc: proc, mounts: parseMountinfo(text)}, nil
}

// Of returns the cgroups of a process.
func (r *Reader) Of(pid int) (Place, error) {
	text, err := disk{}.read(filepath.Join(r.proc, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "", fmt.Errorf("cannot find the cgroup of process %d: %w", pid, err)
	}
	return Place(text), nil
}

// Place is a process's cgroups: the text of /proc/PID/cgroup.
type Place string

// Own reports whether its CPU and memory cgroups are below the top of the hierarchies: the one at the top covers the whole machine.
func (p Place) Own() bool {
	for _, controller := range []string{"cpuacct", "memory"} {
		if _, where, ok := parseCgroup(string(p), controller); !ok || where == "/" {
			return false
		}
	}
	return true
}

// Pod is the place of the pod that a container at p belongs to; ok is false if no parent is a cgroup of that pod.
func (p Place) Pod(uid string) (pod Place, ok bool) {
	var lines []string
	for line := range strings.Lines(string(p)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) < 3 {
			continue
		}
		above := path.Dir(parts[2])
		base := path.Base(above)
		if base == "pod"+uid || strings.HasSuffix(base, "-pod"+strings.ReplaceAll(uid, "-", "_")+sliceSuffix) {
			parts[2], ok = above, true
			lines = append(lines, strings.Join(parts, ":"))
		}
	}
	return Place(strings.Join(lines, "\n")), ok
}

// dir is the directory of a process's cgroup for a controller, and whether it is v2.
func (r *Reader) dir(at Place, controller string) (dir string, v2 bool, err error) {
	found, where, ok := parseCgroup(string(at), controller)
	for _, m := range r.mounts {
		if !ok || (found == "") != m.unified() || found != "" && !m.has(found) {
			continue
		}
		if dir, ok := m.below(where); ok {
			return dir, found == "", nil
		}
	}
	return "", false, fmt.Errorf("cannot find the cgroup of controller %s", controller)
}

// Spot is a place with the directories of its cgroups, looked up once: they stay as long as the cgroups do.
type Spot struct {
	cpuacct, cpu, memory, pids, blkio seen
}

// seen is the directory of one controller's cgroup.
type seen struct {
	dir string
	v2  bool
	err error // why it is unknown
}

// Spot finds the directories of a place. A missing one is reported when it is read.
func (r *Reader) Spot(at Place) *Spot {
	var s Spot
	for controller, one := range map[string]*seen{"cpuacct": &s.cpuacct, "cpu": &s.cpu, "memory": &s.memory, "pids": &s.pids, "blkio": &s.blkio} {
		one.dir, one.v2, one.err = r.dir(at, controller)
	}
	return &s
}

// Measure reads the use of the cgroups at a place. An error wraps fs.ErrNotExist, ESRCH or ENODEV if they are gone.
func (r *Reader) Measure(at Place) (s Sample, err error) { return r.Spot(at).Measure() }

// Measure is Reader.Measure for the spot's place.
func (p *Spot) Measure() (s Sample, err error) {
	for _, one := range []struct {
		seen
		v1, v2 func(*Sample, string) error
	}{{p.cpuacct, cpuV1, cpuV2}, {p.memory, memoryV1, memoryV2}} {
		read := one.v1
		if one.seen.v2 {
			read = one.v2
		}
		if one.err != nil {
			return s, one.err
		}
		if err := read(&s, one.dir); err != nil {
			return s, err
		}
	}
	if p.pids.err == nil {
		if n, err := number(p.pids.dir, "pids.current"); err == nil {
			s.Tasks = &n
		}
	}
	return s, nil
}

func cpuV1(s *Sample, dir string) error {
	n, err := number(dir, "cpuacct.usage")
	s.CPU = time.Duration(n)
	return err
}

func cpuV2(s *Sample, dir string) error {
	values, err := table(dir, "cpu.stat")
	s.CPU = time.Duration(values["usage_usec"]) * time.Microsecond
	s.throttling = throttlingOf(values)
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
	limit, err := number(dir, "memory.limit_in_bytes") // its own limit: the hierarchical one is at most that of all pods together
	if err != nil {
		return err
	}
	s.Limit = bounded(limit)
	s.Resident, s.Faults, s.MajFaults = value(values, "total_rss"), value(values, "total_pgfault"), value(values, "total_pgmajfault")
	s.cache = values["total_cache"]
	s.Swap = value(values, "total_swap") // absent if the kernel does not count it
	if both := bounded(values["hierarchical_memsw_limit"]); s.Swap != nil && both > 0 && s.Limit > 0 {
		limit := less(both, values["hierarchical_memory_limit"])
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
	s.cache = values["file"]
	s.Limit, _ = number(dir, "memory.max") // "max" is not a number: no limit
	if n, err := number(dir, "memory.swap.current"); err == nil {
		s.Swap = &n
		if n, err := number(dir, "memory.swap.max"); err == nil {
			s.SwapLimit = &n
		}
	}
	return nil
}

// bounded returns 0 for the largest number of pages, which means "no limit" in v1.
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
	text, err := disk{}.read(dir + "/" + name)
	if err != nil {
		return 0, fmt.Errorf("cannot measure: %w", err)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("cannot measure by %s: %w", name, err)
	}
	return n, nil
}

func table(dir, name string) (map[string]uint64, error) {
	text, err := disk{}.read(dir + "/" + name)
	if err != nil {
		return nil, fmt.Errorf("cannot measure: %w", err)
	}
	return parseTable(text), nil
}

// parseTable parses lines with a name and a number; it skips others.
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

// Pressure is how long some or all tasks waited for a resource (the kernel's accounting/psi.rst).
type Pressure struct{ Some, Full Stall }

// Stall is percentages of the last 10, 60 and 300 seconds, and Total in microseconds.
type Stall struct {
	Avg10, Avg60, Avg300 float64
	Total                uint64
}

func (s *Sample) pressure(dir string) {
	for _, resource := range []string{"cpu", "memory", "io"} {
		if text, err := (disk{}).read(dir + "/" + resource + ".pressure"); err == nil {
			if s.Pressure == nil {
				s.Pressure = map[string]Pressure{}
			}
			s.Pressure[resource] = ParsePressure(text)
		}
	}
}

// ParsePressure parses a file of pressure stall information.
func ParsePressure(text string) (p Pressure) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		s, ok := parseStall(fields)
		switch {
		case !ok:
		case fields[0] == "some":
			p.Some = s
		case fields[0] == "full":
			p.Full = s
		}
	}
	return p
}

// parseStall parses the fields of a line such as "some avg10=1.50 avg60=0.25 avg300=0.00 total=99".
func parseStall(fields []string) (s Stall, ok bool) {
	averages := []*float64{&s.Avg10, &s.Avg60, &s.Avg300}
	for i, name := range []string{"avg10=", "avg60=", "avg300=", "total="} {
		if len(fields) < 5 {
			return s, false
		}
		text, found := strings.CutPrefix(fields[i+1], name)
		var err error
		if i < len(averages) {
			*averages[i], err = strconv.ParseFloat(text, 64)
		} else {
			s.Total, err = strconv.ParseUint(text, 10, 64)
		}
		if !found || err != nil {
			return s, false
		}
	}
	return s, true
}

// Place is the place of a process in the cgroup.
func (t *Tree) Place(g Group) Place {
	var b strings.Builder
	for _, m := range t.mounts {
		if m.unified() == t.v2 {
			fmt.Fprintf(&b, "0:%s:%s\n", strings.Trim(m.controllers, ","), t.where(g))
		}
	}
	return Place(b.String())
}

// Processes lists the processes in the cgroup of process pid and below it. If that cgroup is the whole machine's, it returns only pid.
func (r *Reader) Processes(pid int) ([]int, error) {
	at, err := r.Of(pid)
	if err != nil {
		return nil, err
	}
	dir, _, err := r.dir(at, "memory")
	if err != nil || !at.Own() {
		return []int{pid}, nil //nolint:nilerr // the whole machine's processes are not the container's
	}
	return processesBelow(disk{}, dir)
}

func processesBelow(files files, dir string) ([]int, error) {
	text, err := files.read(path.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil, err
	}
	var pids []int
	for field := range strings.FieldsSeq(text) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	children, err := files.list(dir)
	if err != nil {
		return nil, err
	}
	for _, child := range children {
		more, err := processesBelow(files, path.Join(dir, child))
		if err != nil && !missing(err) {
			return nil, err
		}
		pids = append(pids, more...)
	}
	return pids, nil
}
