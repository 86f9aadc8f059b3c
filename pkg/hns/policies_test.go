package hns

import (
	"net/netip"
	"slices"
	"testing"
)

func TestLacking(t *testing.T) {
	want := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("192.168.1.3/32"), netip.MustParsePrefix("10.244.0.0/16")}
	for _, test := range []struct {
		have, want []string
	}{
		{nil, []string{"10.96.0.0/12", "192.168.1.3/32", "10.244.0.0/16"}},
		{[]string{"10.96.0.1/12", "192.168.1.3"}, []string{"10.244.0.0/16"}},
		{[]string{"10.96.0.0/12", "10.244.0.0/16", "192.168.1.3/32", "elsewhere"}, nil},
		{[]string{"10.0.0.0/8"}, []string{"10.96.0.0/12", "192.168.1.3/32", "10.244.0.0/16"}},
	} {
		if got := lacking(test.have, want); !slices.Equal(got, test.want) {
			t.Errorf("%v lacks %v, want %v", test.have, got, test.want)
		}
	}
}
