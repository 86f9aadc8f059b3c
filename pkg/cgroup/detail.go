package cgroup

import (
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Detail is the data of a cgroup that is needed less often than a Sample. Values that the system does not report are zero.
type Detail struct {
	Cache         uint64 // bytes of page cache
	throttling           // only with a quota
	Shares        uint64 // CPU weight as in v1; 0 with v2
	Quota, Period int64  // microseconds; Quota 0: none
	Devices       []Device
	OOMKills      *uint64 // its processes killed for lack of memory; nil: the kernel does not report it (before 4.13)
}

// throttling is the use of the CPU quota.
type throttling struct {
	Periods, Throttled uint64 // elapsed periods, and those in which the quota was used up
	ThrottledTime      time.Duration
}

// Device is the I/O of a block device, measured by the kernel's throttling layer.
type Device struct {
	Number                               string // MAJOR:MINOR
	ReadBytes, WriteBytes, Reads, Writes uint64
}

// Detail returns what Measure omits, as far as it is available. It does not read again what s already has.
func (p *Spot) Detail(s *Sample) Detail {
	d := Detail{Cache: s.cache, OOMKills: p.OOMKills()}
	if dir := p.cpu.dir; p.cpu.err == nil && p.cpu.v2 {
		d.Quota, d.Period = parseMax(text(dir, "cpu.max"))
	} else if p.cpu.err == nil {
		d.Shares, _ = number(dir, "cpu.shares")
		d.Quota, _ = strconv.ParseInt(text(dir, "cpu.cfs_quota_us"), 10, 64)
		if d.Quota = max(d.Quota, 0); d.Quota > 0 {
			d.Period, _ = strconv.ParseInt(text(dir, "cpu.cfs_period_us"), 10, 64)
		}
	}
	if d.Quota > 0 {
		d.throttling = p.throttling(s)
	}
	if dir := p.blkio.dir; p.blkio.err == nil && p.blkio.v2 {
		d.Devices = parseIO(text(dir, "io.stat"))
	} else if p.blkio.err == nil {
		d.Devices = parseBlkio(text(dir, "blkio.throttle.io_service_bytes_recursive"), text(dir, "blkio.throttle.io_serviced_recursive"))
	}
	return d
}

// throttling returns the data in s, or reads it.
func (p *Spot) throttling(s *Sample) throttling {
	if s.throttling != nil {
		return *s.throttling
	}
	values, _ := table(p.cpu.dir, "cpu.stat")
	return *throttlingOf(values)
}

// throttlingOf extracts it from cpu.stat.
func throttlingOf(values map[string]uint64) *throttling {
	took := time.Duration(values["throttled_time"]) + time.Duration(values["throttled_usec"])*time.Microsecond
	return &throttling{values["nr_periods"], values["nr_throttled"], took}
}

// OOMKills reads only Detail's field of that name.
func (p *Spot) OOMKills() *uint64 {
	if p.memory.err != nil {
		return nil
	}
	return oomKills(p.memory.dir, p.memory.v2)
}

// OOMKills is how many processes in g and below it the kernel has killed for lack of memory. known is false with v1, which counts them for each cgroup
// alone, and without a cgroup.
func (t *Tree) OOMKills(g Group) (kills uint64, known bool) {
	m, err := t.hierarchy("memory")
	if err != nil || !t.v2 {
		return 0, false
	}
	text, err := t.files.read(path.Join(t.dir(m, g), "memory.events"))
	if err != nil {
		return 0, false
	}
	kills, known = parseTable(text)["oom_kill"]
	return kills, known
}

func oomKills(dir string, v2 bool) *uint64 {
	values, err := table(dir, map[bool]string{false: "memory.oom_control", true: "memory.events"}[v2])
	n, ok := values["oom_kill"]
	if err != nil || !ok {
		return nil
	}
	return &n
}

// DeviceNames maps numbers of the machine's block devices to names (/proc/diskstats), for example 8:1 to sda1.
func (r *Reader) DeviceNames() map[string]string {
	names := map[string]string{}
	for line := range strings.Lines(text(r.proc, "diskstats")) {
		if fields := strings.Fields(line); len(fields) > 2 {
			names[fields[0]+":"+fields[1]] = fields[2]
		}
	}
	return names
}

// Path is the place's path in the memory hierarchy.
func (p Place) Path() string {
	_, where, _ := parseCgroup(string(p), "memory")
	return where
}

func text(dir, name string) string {
	data, err := disk{}.read(dir + "/" + name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(data)
}

// parseMax parses cpu.max: "max 100000" or "50000 100000".
func parseMax(line string) (quota, period int64) {
	first, rest, _ := strings.Cut(line, " ")
	quota, _ = strconv.ParseInt(first, 10, 64) // "max" is not a number
	period, _ = strconv.ParseInt(rest, 10, 64)
	return quota, period
}

// parseBlkio parses the lines of two files, one with bytes and one with operations, such as "8:0 Read 4096".
func parseBlkio(bytes, operations string) (out []Device) {
	for line := range strings.Lines(bytes) {
		deviceLine(&out, line, func(d *Device) (read, write *uint64) { return &d.ReadBytes, &d.WriteBytes })
	}
	for line := range strings.Lines(operations) {
		deviceLine(&out, line, func(d *Device) (read, write *uint64) { return &d.Reads, &d.Writes })
	}
	return out
}

func deviceLine(out *[]Device, line string, of func(*Device) (read, write *uint64)) {
	fields := strings.Fields(line)
	if len(fields) != 3 || fields[1] != "Read" && fields[1] != "Write" {
		return // another kind, or the total
	}
	i := slices.IndexFunc(*out, func(d Device) bool { return d.Number == fields[0] })
	if i < 0 {
		i = len(*out)
		*out = append(*out, Device{Number: fields[0]})
	}
	n, _ := strconv.ParseUint(fields[2], 10, 64)
	if read, write := of(&(*out)[i]); fields[1] == "Read" {
		*read = n
	} else {
		*write = n
	}
}

// parseIO parses lines such as "8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0".
func parseIO(lines string) (out []Device) {
	for line := range strings.Lines(lines) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue // a device without figures
		}
		d := Device{Number: fields[0]}
		for _, field := range fields[1:] {
			name, value, _ := strings.Cut(field, "=")
			n, _ := strconv.ParseUint(value, 10, 64)
			switch name {
			case "rbytes":
				d.ReadBytes = n
			case "wbytes":
				d.WriteBytes = n
			case "rios":
				d.Reads = n
			case "wios":
				d.Writes = n
			}
		}
		out = append(out, d)
	}
	return out
}
