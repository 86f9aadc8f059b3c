package doctor

import (
	"strings"
	"testing"
)

// TestAdvice: settings of the engine that only cost time are advice with a cure, no faults.
func TestAdvice(t *testing.T) {
	for _, test := range []struct {
		name      string
		change    func(*Symptoms)
		what, fix string // "": no advice
	}{
		{"vfs", func(s *Symptoms) { s.Engine.StorageDriver = "vfs" }, "storage driver vfs is slow", `"storage-driver": "overlay2"`},
		{"FUSE", func(s *Symptoms) { s.Engine.StorageDriver = "fuse-overlayfs" }, "storage driver fuse-overlayfs is slow", `"storage-driver": "overlay2"`},
		{"crun unused", func(s *Symptoms) { s.Engine.DefaultRuntime.Name, s.Engine.Runtimes = "runc", []string{"crun", "runc"} }, "Docker has crun, and uses runc", `"default-runtime": "crun"`},
		{"crun used", func(s *Symptoms) { s.Engine.DefaultRuntime.Name, s.Engine.Runtimes = "crun", []string{"crun", "runc"} }, "", ""},
		{"containerd's store", func(s *Symptoms) { s.Engine.StorageDriver = "overlayfs" }, "", ""},
	} {
		s := sound("linux")
		test.change(&s)
		got := text(s)
		_, rest, found := strings.Cut(got, "advice ")
		what, fix, _ := strings.Cut(rest, "\n       fix: ")
		if found != (test.what != "") || strings.Contains(got, "FAULT") || !strings.Contains(what, test.what) || !strings.Contains(fix, test.fix) {
			t.Errorf("%s: want advice %q with %q; got\n%s", test.name, test.what, test.fix, got)
		}
	}
}
