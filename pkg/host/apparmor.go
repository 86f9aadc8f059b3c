package host

import (
	"os"
	"strings"
)

// Where the kernel describes AppArmor. Other systems have no such files, and no AppArmor.
var (
	appArmorSwitch   = "/sys/module/apparmor/parameters/enabled"
	appArmorProfiles = "/sys/kernel/security/apparmor/profiles"
)

// AppArmor says whether the kernel enforces AppArmor profiles.
func AppArmor() bool {
	data, err := os.ReadFile(appArmorSwitch)
	return err == nil && strings.HasPrefix(string(data), "Y")
}

// AppArmorProfile says whether the profile of that name is loaded: true also where the kernel does not say.
func AppArmorProfile(name string) bool {
	data, err := os.ReadFile(appArmorProfiles)
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(data)) {
		if i := strings.LastIndex(line, " ("); i >= 0 && line[:i] == name { // name (mode)
			return true
		}
	}
	return false
}
