package vxlan

import (
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"strings"
	"testing"
)

var (
	four = NewDevice(netip.MustParsePrefix("10.244.1.0/24"), netip.MustParseAddr("10.1.0.11"), 1500)
	six  = NewDevice(netip.MustParsePrefix("fd00:244:0:1::/64"), netip.MustParseAddr("fd00:1::11"), 9000)
)

func TestNewDevice(t *testing.T) {
	for _, c := range []struct {
		got  Device
		want string
	}{
		{four, "winkube.4096, 10.244.1.0/32, mac 0e:2a:0a:f4:01:00, from 10.1.0.11, mtu 1450"},
		{six, "winkube-v6.4096, fd00:244:0:1::/128, mac 0e:2a:00:00:00:01, from fd00:1::11, mtu 8930"},
	} {
		if got := c.got.String(); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
		if len(c.got.Name) > 15 {
			t.Errorf("%s is longer than a Linux interface's name may be", c.got.Name)
		}
	}
}

// TestAnnotations: a node can read what another writes, and what flannel writes.
func TestAnnotations(t *testing.T) {
	both := Annotations([]Device{four, six}, nil)
	want := `annotation: flannel.alpha.coreos.com/backend-data={"VNI":4096,"VtepMAC":"0e:2a:0a:f4:01:00"}
annotation: flannel.alpha.coreos.com/backend-type=vxlan
annotation: flannel.alpha.coreos.com/backend-v6-data={"VNI":4096,"VtepMAC":"0e:2a:00:00:00:01"}
annotation: flannel.alpha.coreos.com/kube-subnet-manager=true
annotation: flannel.alpha.coreos.com/public-ip=10.1.0.11
annotation: flannel.alpha.coreos.com/public-ipv6=fd00:1::11
`
	if got := Text(both); got != want {
		t.Errorf("got\n%s", got)
	}
	for _, d := range []Device{four, six} {
		if end, err := Parse(both, d.Local); err != nil || end != (End{d.Local, d.MAC}) {
			t.Errorf("%+v, %v", end, err)
		}
	}
	windows := map[string]string{
		"flannel.alpha.coreos.com/backend-data": `{"VNI":4096,"VtepMAC":"00:15:5d:4b:1c:8f"}`, "flannel.alpha.coreos.com/backend-type": "vxlan",
		"flannel.alpha.coreos.com/kube-subnet-manager": "true", "flannel.alpha.coreos.com/public-ip": "10.1.0.13",
	}
	if end, err := Parse(windows, four.Local); err != nil || end.MAC.String() != "00:15:5d:4b:1c:8f" || end.Public.String() != "10.1.0.13" {
		t.Errorf("%+v, %v", end, err)
	}
	overwritten := Annotations([]Device{four}, map[string]string{"flannel.alpha.coreos.com/public-ip-overwrite": "198.51.100.7"})
	if got := overwritten["flannel.alpha.coreos.com/public-ip"]; got != "198.51.100.7" {
		t.Errorf("public-ip-overwrite was not heeded: %s", got)
	}
	if Annotations(nil, windows) != nil {
		t.Error("annotations without a device")
	}
}

func TestParseErrors(t *testing.T) {
	good := Annotations([]Device{four}, nil)
	for name, c := range map[string]struct{ key, value, want string }{
		"other backend":  {"backend-type", "host-gw", `backend-type is "host-gw"; want vxlan`},
		"no JSON":        {"backend-data", "null ", "is \"null \"; want"},
		"flannel's VNI":  {"backend-data", `{"VNI":1,"VtepMAC":"0e:2a:0a:f4:01:00"}`, "has VNI 1; want 4096"},
		"bad MAC":        {"backend-data", `{"VNI":4096,"VtepMAC":"0e:2a"}`, `VtepMAC "0e:2a"; want six bytes`},
		"long MAC":       {"backend-data", `{"VNI":4096,"VtepMAC":"00:00:00:00:fe:80:00:00"}`, "want six bytes"},
		"no address":     {"public-ip", "", `public-ip is ""; want the node's address`},
		"other family":   {"public-ip", "fd00::1", "want the node's address"},
		"data that lies": {"backend-data", `[1]`, "want {"},
	} {
		bad := maps.Clone(good)
		bad["flannel.alpha.coreos.com/"+c.key] = c.value
		if name == "no JSON" {
			c.want = "has VNI 0" // JSON's null is an empty value
		}
		if _, err := Parse(bad, four.Local); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := Parse(nil, four.Local); !errors.Is(err, ErrNone) {
		t.Errorf("%v", err)
	}
}

func TestChanges(t *testing.T) {
	ours := Annotations([]Device{four}, nil)
	if got := Changes(nil, ours); len(got) != len(ours) {
		t.Errorf("%v", got)
	}
	if got := Changes(ours, ours); len(got) != 0 {
		t.Errorf("the same again changes %v", got)
	}
	have := maps.Clone(ours)
	have["unrelated"], have["flannel.alpha.coreos.com/public-ip"] = "x", "10.9.9.9"
	if got := Changes(have, ours); len(got) != 1 || *got["flannel.alpha.coreos.com/public-ip"] != "10.1.0.11" {
		t.Errorf("%v", got)
	}
	gone := Changes(have, nil)
	if _, touched := gone["unrelated"]; len(gone) != 4 || touched {
		t.Errorf("removed: %v", gone)
	}
	flannels := Annotations([]Device{four}, nil)
	flannels["flannel.alpha.coreos.com/backend-data"] = `{"VNI":4096,"VtepMAC":"5e:11:22:33:44:55"}`
	if got := Changes(flannels, nil); len(got) != 0 {
		t.Errorf("flannel's own annotations would be removed: %v", got)
	}
	if got := Known(have); len(got) != 4 {
		t.Errorf("%v", got)
	}
}

// TestChangesOfWindows: a Windows tunnel end has the hardware address that HNS chose. It is withdrawn because it is
// marked; that of a flannel never is.
func TestChangesOfWindows(t *testing.T) {
	d := four
	var err error
	if d.MAC, err = parseMAC("00-15-5D-4B-1C-8F"); err != nil {
		t.Fatal(err)
	}
	ours := Annotations([]Device{d}, nil)
	if end, err := Parse(ours, d.Local); err != nil || end != (End{d.Local, d.MAC}) || ours["winkube.io/tunnel"] != "00:15:5d:4b:1c:8f" {
		t.Errorf("%v: %+v, %v", ours, end, err)
	}
	if got := Known(ours); len(got) != len(ours) {
		t.Errorf("known are %v", got)
	}
	if got := Changes(ours, nil); len(got) != len(ours) {
		t.Errorf("removed: %v", got)
	}
	rebuilt := d
	rebuilt.MAC[5]++
	if got := Changes(ours, Annotations([]Device{rebuilt}, nil)); len(got) != 2 || *got["winkube.io/tunnel"] != "00:15:5d:4b:1c:90" {
		t.Errorf("HNS recreated the network: %v", got)
	}
	if got := Changes(ours, Annotations([]Device{four}, nil)); len(got) != 2 || got["winkube.io/tunnel"] != nil {
		t.Errorf("the host is Linux now: %v", got)
	}
	flannels := maps.Clone(ours)
	flannels["flannel.alpha.coreos.com/backend-data"] = `{"VNI":4096,"VtepMAC":"00:15:5d:11:22:33"}`
	if got := Changes(flannels, nil); len(got) != 1 {
		t.Errorf("flannel came after us: only the mark is ours; removed: %v", got)
	}
	for _, bad := range []string{"", "00-15-5D", "00:00:00:00:fe:80:00:00"} {
		if _, err := parseMAC(bad); err == nil {
			t.Errorf("%q is accepted as a hardware address", bad)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("vxlan", `{"VNI":4096,"VtepMAC":"0e:2a:0a:f4:01:00"}`, "10.1.0.11")
	f.Add("vxlan", `{}`, "::ffff:10.1.0.11")
	f.Fuzz(func(t *testing.T, kind, data, public string) {
		end, err := Parse(map[string]string{backendType: kind, keysOf(true).data: data, keysOf(true).public: public}, four.Local)
		if err == nil && !end.Public.Is4() {
			t.Fatalf("%+v", end)
		}
	})
}

// TestParseData: the shortcut returns the same as the decoder, and other forms are decoded.
func TestParseData(t *testing.T) {
	for _, text := range []string{
		`{"VNI":4096,"VtepMAC":"0e:2a:0a:f4:01:00"}`, `{"VNI":4096,"VtepMAC":""}`, `{ "VNI": 4096, "VtepMAC": "0e:2a:0a:f4:01:00" }`,
		`{"VtepMAC":"0e:2a:0a:f4:01:00","VNI":4096}`, `{"VNI":4096,"VtepMAC":"0e:2a:0a:f4:01:00","Port":4789}`, `{"VNI":4096,"VtepMAC":"a","VNI":"1"}`,
		`{"VNI":4096,"VtepMAC":"0e:2a:0a:f4:01:0\u0030"}`, `{"VNI":1,"VtepMAC":"0e:2a:0a:f4:01:00"}`, `{"VNI":4096,"VtepMAC":"0e`, `"}`, ``,
	} {
		var want backendData
		wantErr := json.Unmarshal([]byte(text), &want)
		if got, err := parseData(text); (err == nil) != (wantErr == nil) || err == nil && got != want {
			t.Errorf("%s: got %+v, %v, want %+v, %v", text, got, err, want, wantErr)
		}
	}
}
