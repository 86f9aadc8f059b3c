package report

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestFile(t *testing.T) {
	f := File(filepath.Join(t.TempDir(), "deep", "trouble"))
	want := []Trouble{
		{Reason: "RouteConflict", Message: "a route of others", To: netip.MustParsePrefix("10.244.2.0/24")},
		{Reason: "PodCIDROverlaps", Message: "an older Node has it"},
	}
	for _, list := range [][]Trouble{nil, want, want, want[:1], nil, nil} {
		if err := f.Write(list); err != nil {
			t.Fatal(err)
		}
		got, err := f.Read()
		if err != nil || !slices.Equal(got, list) {
			t.Errorf("read %+v, %v; written %+v", got, err, list)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(string(f))); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// TestFacts: facts have a separate file, which is removed when nothing is known. A kubelet that does not know about facts reads the
// troubles as before.
func TestFacts(t *testing.T) {
	f := FactsFile(filepath.Join(t.TempDir(), "deep", "facts"))
	want := Facts{Services: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00::/108")}, Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/22")}}
	for _, facts := range []Facts{{}, want, want, {Pods: want.Pods}, {Balancers: "cbr0"}, {Listen: []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:10256")}}, {}} {
		if err := f.Write(facts); err != nil {
			t.Fatal(err)
		}
		got, err := f.Read()
		if err != nil || !slices.Equal(got.Services, facts.Services) || !slices.Equal(got.Pods, facts.Pods) || got.Balancers != facts.Balancers || !slices.Equal(got.Listen, facts.Listen) {
			t.Errorf("read %+v, %v; written %+v", got, err, facts)
		}
	}
	if left, err := os.ReadDir(filepath.Dir(string(f))); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if err := os.WriteFile(string(f), []byte(`{"services": ["10.96.0.0/99"]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Read(); err == nil || len(got.Services) > 0 {
		t.Errorf("%+v, %v", got, err)
	}
	if one, err := FactsOfHost(true); err != nil || one == "" {
		t.Errorf("%q, %v", one, err)
	}
}

func TestFileSpoilt(t *testing.T) {
	f := File(filepath.Join(t.TempDir(), "trouble"))
	for _, text := range []string{"", "{", `[{"to": "10.244.0.0/99"}]`} {
		if err := os.WriteFile(string(f), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := f.Read(); err == nil || !strings.Contains(err.Error(), "cannot read what the proxy reports in ") {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	inFile := File(filepath.Join(string(f), "trouble"))
	if err := inFile.Write([]Trouble{{Reason: "X"}}); err == nil {
		t.Error("written where no directory can be")
	}
	if err := inFile.Watch(t.Context(), func() {}); err == nil || !strings.Contains(err.Error(), "cannot watch") {
		t.Errorf("watched where no directory can be: %v", err)
	}
}

// Watch announces each change after it was made.
func TestWatch(t *testing.T) {
	f := File(filepath.Join(t.TempDir(), "not there yet", "trouble"))
	ctx, cancel := context.WithCancel(t.Context())
	changed, done := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		done <- f.Watch(ctx, func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}()
	<-changed // initial call: from here on every change is seen
	for _, list := range [][]Trouble{{{Reason: "One"}}, {{Reason: "Two"}}, nil} {
		if err := f.Write(list); err != nil {
			t.Fatal(err)
		}
		<-changed
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestOfHost(t *testing.T) {
	if f, err := OfHost(true); err != nil || !strings.HasPrefix(string(f), `C:\`) {
		t.Errorf("%q, %v", f, err)
	}
	if _, err := os.Readlink("/proc/self/ns/net"); err != nil {
		t.Skip("this system has no network namespaces")
	}
	one, err := OfHost(false)
	again, _ := OfHost(false)
	if err != nil || one != again || !strings.HasPrefix(string(one), "/run/winkube-proxy/trouble-") {
		t.Errorf("%q and %q, %v", one, again, err)
	}
}

// The zero File reports nothing and watches nothing.
func TestNoFile(t *testing.T) {
	var f File
	if list, err := f.Read(); err != nil || len(list) > 0 {
		t.Errorf("%v, %v", list, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Watch(ctx, func() { t.Error("a change was announced") }); err != nil {
		t.Error(err)
	}
}
