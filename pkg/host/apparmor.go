package host

import (
	"os"
	"strings"
)

// Files in which the kernel describes AppArmor. Other systems have neither the files nor AppArmor.
var (
	appArmorSwitch   = "/sys/module/apparmor/parameters/enabled"
	appArmorProfiles = "/sys/kernel/security/apparmor/profiles"
)

// AppArmor reports whether the kernel enforces AppArmor profiles.
func AppArmor() bool {
	data, err := os.ReadFile(appArmorSwitch)
	return err == nil && strings.HasPrefix(string(data), "Y")
}

// AppArmorProfile reports whether a profile is loaded. It is also true if the kernel's list cannot be read.
func AppArmorProfile(name string) bool {
	data, err := os.ReadFile(appArmorProfiles)
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(data)) {
		if i := strings.LastIndex(line, " ("); i >= 0 && line[:i] == name { // format: name (mode)
			return true
		}
	}
	return false
}
