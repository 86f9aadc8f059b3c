package host

import (
	"fmt"
	"io/fs"
	"strings"
)

// kernelDefaults are the sysctls that --protect-kernel-defaults wants, as upstream's kubelet compares them: an overcommitted host kills processes
// instead of refusing memory, a kernel that is broken boots again, and root has keyrings for many containers.
var kernelDefaults = []struct{ name, value string }{
	{"vm.overcommit_memory", "1"},
	{"vm.panic_on_oom", "0"},
	{"kernel.panic", "10"},
	{"kernel.panic_on_oops", "1"},
	{"kernel.keys.root_maxkeys", "1000000"},
	{"kernel.keys.root_maxbytes", "25000000"},
}

// CheckKernelDefaults compares Linux' settings with those that hardened nodes want. sys is /proc/sys. The error names each sysctl that differs, its
// value and the right one.
func CheckKernelDefaults(sys fs.FS) error {
	var wrong []string
	for _, d := range kernelDefaults {
		text, err := fs.ReadFile(sys, strings.ReplaceAll(d.name, ".", "/"))
		if err != nil {
			return fmt.Errorf("cannot read sysctl %s: %w", d.name, err)
		}
		if value := strings.TrimSpace(string(text)); value != d.value {
			wrong = append(wrong, fmt.Sprintf("%s=%s, want %s", d.name, value, d.value))
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("the kernel has %s; write the wanted values to a file in /etc/sysctl.d and run: sysctl --system", strings.Join(wrong, "; "))
	}
	return nil
}
