package pod

import (
	"strings"
	"testing"
)

func TestCheckImageFits(t *testing.T) {
	for _, c := range []struct {
		os, version string
		host        int
		hyperv      bool
		want        string
	}{
		{"windows", "10.0.14393.5850", 14393, false, ""},
		{"windows", "10.0.14393.1", 17763, false, "image app is for Windows build 14393, this host has 17763, and without Hyper-V isolation they must be the same: use an image for build 17763, " +
			"or give the pod a RuntimeClass with handler hyperv"},
		{"windows", "10.0.14393.1", 17763, true, ""},
		{"windows", "10.0.20348.1", 26100, false, ""},
		{"windows", "10.0.26100.1", 20348, false, "image app is for Windows build 26100, which is newer than this host's, 20348"},
		{"windows", "10.0.26100.1", 20348, true, "newer than this host's"},
		{"linux", "", 20348, false, "image app is for linux, and this host runs Windows containers"},
		{"windows", "", 20348, false, ""},
		{"windows", "10.0", 20348, false, ""},
		{"windows", "a.b.c", 20348, false, ""},
		{"", "", 20348, false, ""},
		{"linux", "", 0, false, ""},
	} {
		platform := Platform{OS: "windows", Build: c.host}
		if c.host == 0 {
			platform.OS = "linux"
		}
		err := CheckImageFits("app", Image{OS: c.os, OSVersion: c.version}, platform, c.hyperv)
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
