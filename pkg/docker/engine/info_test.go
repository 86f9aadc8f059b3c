package engine

import "testing"

func TestRecursiveReadOnly(t *testing.T) {
	for _, test := range []struct {
		os, api, kernel string
		want            bool
	}{
		{"linux", "1.44", "5.12.0", true}, {"linux", "1.52", "6.18.44-fc-v445", true}, {"linux", "1.43", "6.1.0", false},
		{"linux", "1.44", "5.10.0-8-amd64", false}, {"linux", "1.44", "odd", false}, {"windows", "1.52", "10.0 20348", false},
	} {
		if got := recursiveReadOnly(Info{OS: test.os, APIVersion: test.api, KernelVersion: test.kernel}); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
}
