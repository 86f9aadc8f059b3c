package host

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/windows"
	"golang.zx2c4.com/wireguard/windows/tunnel/winipcfg"
)

// TestAdapters: Adapters agrees with Go about the interfaces that both list, because one may be added or removed
// meanwhile. At most one has the default route, the one that determines the node's address.
func TestAdapters(t *testing.T) {
	all, err := Adapters()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]*Adapter{}
	var leading []string
	for i := range all {
		known[all[i].Name] = &all[i]
		if all[i].Default {
			leading = append(leading, all[i].Name)
		}
	}
	list, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	four, _, err := defaultRoutes()
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, i := range list {
		a := known[i.Name]
		if a == nil {
			continue
		}
		compared++
		if a.Loopback != (i.Flags&net.FlagLoopback != 0) || a.Default != (i.Index == four) {
			t.Errorf("%+v; Go has %+v, the default route leads through %d", *a, i, four)
		}
	}
	if compared == 0 {
		t.Errorf("none of %+v is an adapter of %+v", list, all)
	}
	if len(leading) > 1 {
		t.Errorf("the default route leads through %q", leading)
	}
}

// TestRefused: what IP Helper refuses is an error, never an empty result. The simulator refuses on request, Windows
// does not.
func TestRefused(t *testing.T) {
	t.Setenv("WINKUBE_REFUSE", "GetIfTable2Ex")
	if _, err := winipcfg.GetIfTable2Ex(winipcfg.MibIfEntryNormal); err == nil {
		t.Skip("this IP Helper refuses nothing on request")
	}
	for _, function := range []string{"GetIfTable2Ex", "GetIpForwardTable2"} {
		t.Setenv("WINKUBE_REFUSE", function)
		if all, err := Adapters(); !errors.Is(err, windows.ERROR_ACCESS_DENIED) || all != nil {
			t.Errorf("%s refused: %v, %v", function, all, err)
		}
	}
	if all, err := Addresses(); !errors.Is(err, windows.ERROR_ACCESS_DENIED) || all != nil {
		t.Errorf("the routes refused: addresses %v, %v", all, err)
	}
}

func TestRegistry(t *testing.T) {
	const version = `SOFTWARE\Microsoft\Windows NT\CurrentVersion`
	if registryString(version, "ProductName") == "" || registryNumber(version, "CurrentMajorVersionNumber") < 10 {
		t.Error("Windows has no name, or an old version")
	}
	for _, key := range []string{version, `SOFTWARE\winkube\none`} {
		if text, number := registryString(key, "None"), registryNumber(key, "None"); text != "" || number != 0 {
			t.Errorf("what is not there: %q, %d", text, number)
		}
	}
}
