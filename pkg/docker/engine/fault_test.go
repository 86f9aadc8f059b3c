package engine

import (
	"errors"
	"testing"
)

// TestFaults: each fault of an engine has one reason; a sound one has none, nor has one that does not answer.
func TestFaults(t *testing.T) {
	sound := Info{Version: "29.1.0", APIVersion: "1.51", CgroupDriver: "systemd", DefaultRuntime: Runtime{Name: "runc"}}
	for _, test := range []struct {
		name   string
		change func(*Info)
		err    error
		driver string
		want   string
	}{
		{"sound", func(*Info) {}, nil, "", ""},
		{"the same driver", func(*Info) {}, nil, "systemd", ""},
		{"another driver", func(*Info) {}, nil, "cgroupfs", "CgroupDriverDiffers"},
		{"Windows", func(i *Info) { i.CgroupDriver = "" }, nil, "systemd", ""},
		{"old", func(i *Info) { i.Version, i.APIVersion = "17.03.2-ce", "1.27" }, nil, "", "EngineTooOld"},
		{"new", func(i *Info) { *i = Info{} }, errors.Join(tooNew{"1.60", errors.New("client version 1.51 is too old")}), "systemd", "EngineTooNew"},
		{"away", func(i *Info) { *i = Info{} }, errors.New("no socket"), "systemd", ""},
		{"no runtime", func(i *Info) { i.DefaultRuntime.Missing = true }, nil, "", "RuntimeMissing"},
	} {
		info := sound
		test.change(&info)
		got := ""
		for _, f := range Faults(info, test.err, test.driver) {
			got += f.Reason
			if f.What == "" || f.Fix == "" {
				t.Errorf("%s: %+v lacks a cause or a cure", test.name, f)
			}
		}
		if got != test.want {
			t.Errorf("%s: faults %q, want %q", test.name, got, test.want)
		}
	}
	for version, want := range map[string]bool{"17.03.2-ce": true, "17.06.2-ee": false, "20.10.24+dfsg1": false, "1.13.1": true, "dev": false, "": false, "27.1.0": false} {
		if got := (Info{Version: version}).tooOld(); got != want {
			t.Errorf("%q is too old: %v", version, got)
		}
	}
}
