package cni

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// origin identifies the namespace of a path of the form /proc/PID/ns/net, by its process, this boot, and the namespace's number. The start time tells
// the process from a later one with its PID. Equal texts mean the same namespace. "": the process has ended, or the path has another form.
func (p *Plugins) origin(netns string) string {
	rest, ok := strings.CutPrefix(netns, "/proc/")
	text, _, _ := strings.Cut(rest, "/")
	pid, err := strconv.Atoi(text)
	if !ok || err != nil || rest != text+"/ns/net" {
		return ""
	}
	dir := filepath.Join(p.cfg.Proc, strconv.Itoa(pid))
	began := startOf(dir)
	boot, _ := os.ReadFile(filepath.Join(p.cfg.Proc, "sys/kernel/random/boot_id"))
	space, err := os.Readlink(filepath.Join(dir, "ns/net"))
	// If this has not changed, everything read in between belongs to that process.
	if err != nil || began == "" || startOf(dir) != began {
		return ""
	}
	return fmt.Sprintf("boot %s, process %d of %s, %s", strings.TrimSpace(string(boot)), pid, began, space)
}

// startOf is the start time of a process, in ticks since the boot (field 22 of proc_pid_stat(5)); "": it has ended.
func startOf(dir string) string {
	const field, first = 22, 3 // the first after the name, which may contain anything
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) <= field-first {
		return ""
	}
	return fields[field-first]
}

// still returns netns if a is attached to it, otherwise "". With "", plugins free only resources outside the namespace (CNI specification, DEL).
func (p *Plugins) still(a Attachment, netns string) string {
	if a.Origin != "" && p.origin(netns) != a.Origin {
		return ""
	}
	return netns
}
