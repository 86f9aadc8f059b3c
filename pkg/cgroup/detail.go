package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Detail is what of a cgroup is asked for less often than a Sample. What the system does not tell is zero.
type Detail struct {
	Cache              uint64 // bytes of files' pages
	Periods, Throttled uint64 // of CPU quota: those that have passed, and those in which it was used up
	ThrottledTime      time.Duration
	Shares             uint64 // CPU weight as v1 has it, 0 with v2
	Quota, Period      int64  // microseconds; Quota 0: none
	// Of block devices, through the kernel's own throttling layer.
	ReadBytes, WriteBytes, Reads, Writes uint64
}

// Detail reads what Measure leaves out, as far as it is there.
func (r *Reader) Detail(at Place) (d Detail) {
	if dir, v2, err := r.dir(at, "memory"); err == nil {
		values, _ := table(dir, "memory.stat")
		d.Cache = values[map[bool]string{false: "total_cache", true: "file"}[v2]]
	}
	if dir, v2, err := r.dir(at, "cpu"); err == nil {
		values, _ := table(dir, "cpu.stat")
		d.Periods, d.Throttled = values["nr_periods"], values["nr_throttled"]
		d.ThrottledTime = time.Duration(values["throttled_time"]) + time.Duration(values["throttled_usec"])*time.Microsecond
		if v2 {
			d.Quota, d.Period = parseMax(text(dir, "cpu.max"))
		} else {
			d.Shares, _ = number(dir, "cpu.shares")
			d.Quota, _ = strconv.ParseInt(text(dir, "cpu.cfs_quota_us"), 10, 64)
			d.Quota = max(d.Quota, 0)
			d.Period, _ = strconv.ParseInt(text(dir, "cpu.cfs_period_us"), 10, 64)
		}
	}
	if dir, v2, err := r.dir(at, "blkio"); err == nil && !v2 {
		d.ReadBytes, d.WriteBytes = parseBlkio(text(dir, "blkio.throttle.io_service_bytes_recursive"))
		d.Reads, d.Writes = parseBlkio(text(dir, "blkio.throttle.io_serviced_recursive"))
	} else if err == nil {
		d.parseIO(text(dir, "io.stat"))
	}
	return d
}

// Path is where a process at p is in the hierarchy of memory.
func (p Place) Path() string {
	_, where, _ := parseCgroup(string(p), "memory")
	return where
}

func text(dir, name string) string {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// parseMax reads cpu.max: "max 100000", or "50000 100000".
func parseMax(line string) (quota, period int64) {
	first, rest, _ := strings.Cut(line, " ")
	quota, _ = strconv.ParseInt(first, 10, 64) // "max" is no number
	period, _ = strconv.ParseInt(rest, 10, 64)
	return quota, period
}

// parseBlkio adds up the devices in lines such as "8:0 Read 4096".
func parseBlkio(lines string) (read, write uint64) {
	for line := range strings.Lines(lines) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue
		}
		n, _ := strconv.ParseUint(fields[2], 10, 64)
		switch fields[1] {
		case "Read":
			read += n
		case "Write":
			write += n
		}
	}
	return read, write
}

// parseIO adds up the devices in lines such as "8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0".
func (d *Detail) parseIO(lines string) {
	for field := range strings.FieldsSeq(lines) {
		name, value, _ := strings.Cut(field, "=")
		n, _ := strconv.ParseUint(value, 10, 64)
		switch name {
		case "rbytes":
			d.ReadBytes += n
		case "wbytes":
			d.WriteBytes += n
		case "rios":
			d.Reads += n
		case "wios":
			d.Writes += n
		}
	}
}
