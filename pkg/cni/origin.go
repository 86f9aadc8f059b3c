package cni

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// origin identifies the namespace of a path of the form /proc/PID/ns/net: by the process, which its start time distinguishes from a later one with the
// same PID, this boot, and the namespace's number. The same text later means the same namespace. "": the process has gone, or the path has another form.
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
	// Read again: if it is the same, what was read in between belongs to that process.
	if err != nil || began == "" || startOf(dir) != began {
		return ""
	}
	return fmt.Sprintf("boot %s, process %d of %s, %s", strings.TrimSpace(string(boot)), pid, began, space)
}

// startOf is when a process began, in ticks since the boot (field 22 of proc_pid_stat(5)); "": it has gone.
func startOf(dir string) string {
	const field, first = 22, 3 // the first after the name, which may hold anything
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

// still returns netns if it is still what a was attached to, else "", with which plugins free what they keep outside of it (CNI specification, DEL).
func (p *Plugins) still(a Attachment, netns string) string {
	if a.Origin != "" && p.origin(netns) != a.Origin {
		return ""
	}
	return netns
}
