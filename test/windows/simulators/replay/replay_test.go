package replay

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/record"
)

func in(texts ...string) (out []json.RawMessage) {
	for _, t := range texts {
		out = append(out, record.Text(t))
	}
	return out
}

// small returns a recording of a network that is created and deleted.
func small() record.Recording {
	return record.Recording{Header: record.Header{Recording: record.Version, OS: "windows", API: "1.41", Engine: "20.10.24"}, Exchanges: []record.Exchange{
		{N: 1, Service: record.HNS, Call: "HNSCall", In: in("GET", "/networks/", ""), Out: in(`[{"Name":"nat"}]`)},
		{N: 2, Service: record.HNS, Call: "HcnCreateNetwork", In: in("0", `{"Name":"cbr0","Flags":8,"Ipams":[{"Type":"Static"}]}`), Out: in("handle 1")},
		{N: 3, Service: record.HNS, Call: "HcnQueryNetworkProperties", In: in("handle 1", "{}"), Out: in(`{"ID":"AB"}`)},
		{N: 4, Service: record.HNS, Call: "HNSCall", In: in("GET", "/networks/", ""), Out: in(`[{"Name":"nat"},{"Name":"cbr0"}]`)},
		{N: 5, Service: record.HNS, Call: "HcnDeleteNetwork", In: in("AB"), Code: 0x803b0001, Out: in(`{"Error":"no"}`)},
		{N: 6, Service: record.HNS, Call: "HcnDeleteNetwork", In: in("AB")},
		{N: 7, Service: record.HNS, Call: "HNSCall", In: in("GET", "/networks/", ""), Out: in(`[]`)},
		{N: 8, Service: record.Engine, Call: "POST /networks/create", In: in(`{"Name":"cbr0","Labels":{"label-1":"REDACTED"}}`), Out: in(`{"Id":"1"}`), Code: 201},
		{N: 9, Service: record.Engine, Call: "GET /images/image-1/json", Out: in(`{"Id":"2"}`), Code: 200},
		{N: 10, Service: record.Netsh, Call: "netsh -f SCRIPT", In: []json.RawMessage{json.RawMessage(`["interface portproxy add v4tov4","interface portproxy dump"]`)}, Out: []json.RawMessage{json.RawMessage(`["a","b"]`)}},
	}}
}

// TestMatching: reads follow the changes; changes may come in any order, as often as recorded; handles may be opened more
// often.
func TestMatching(t *testing.T) {
	h := New(small())
	shim := func(function string, args ...string) (uint32, string) {
		var fields [][]byte
		for _, a := range args {
			fields = append(fields, []byte(a))
		}
		result, out, ok := h.Shim(record.HNS, function, fields)
		if !ok {
			t.Fatalf("%s is not answered", function)
		}
		return result, string(out[0]) + string(out[1])
	}
	for i, step := range []struct {
		function string
		args     []string
		result   uint32
		want     string
	}{
		{"HNSCall", []string{"GET", "/networks/", ""}, 0, `[{"Name":"nat"}]`},
		{"HNSCall", []string{"GET", "/networks/", ""}, 0, `[{"Name":"nat"}]`}, // nothing has changed yet
		{"HcnCreateNetwork", []string{"0", `{"Flags":8,"Ipams":[{"Type":"Static"}],"Name":"cbr0"}`}, 0, "4097"},
		{"HNSCall", []string{"GET", "/networks/", ""}, 0, `[{"Name":"nat"},{"Name":"cbr0"}]`},
		{"HcnQueryNetworkProperties", []string{"4097", "{}"}, 0, `{"ID":"AB"}`},
		{"HcnDeleteNetwork", []string{"AB"}, 0x803b0001, `{"Error":"no"}`},
		{"HcnDeleteNetwork", []string{"AB"}, 0, ""},
		{"HNSCall", []string{"GET", "/networks/", ""}, 0, `[]`},
	} {
		if result, got := shim(step.function, step.args...); result != step.result || got != step.want {
			t.Errorf("%d: %s answers %#x %s, want %#x %s", i, step.function, result, got, step.result, step.want)
		}
	}
	if d := h.Deviations(); len(d) > 0 {
		t.Errorf("deviations: %q", d)
	}
	if m := h.Missing(); len(m) != 2 || !strings.Contains(m[0], "exchange 8") || !strings.Contains(m[1], "exchange 10") {
		t.Errorf("missing: %q", m)
	}
	if result, _ := shim("HcnDeleteNetwork", "AB"); result != notRecorded {
		t.Errorf("a third time: %#x", result)
	}
	shim("HcnCreateNetwork", "0", `{"Name":"cbr0","Flags":0,"Ipams":[{"Type":"Static","Subnets":1}],"Policies":[]}`)
	shim("HcnCreateEndpoint", "4097")
	want := []string{"not in the recording: hns HcnDeleteNetwork \"AB\"\n  it was recorded, and asked more often now",
		"not in the recording: hns HcnCreateNetwork \"0\" {\"Name\":\"cbr0\",\"Flags\":0,\"Ipams\":[{\"Type\":\"Static\",\"Subnets\":1}],\"Policies\":[]}\n  nearest is exchange 2 ():\n" +
			"    argument 2.Flags: recorded 8, now 0\n    argument 2.Ipams[0].Subnets: recorded absent, now 1\n    argument 2.Policies: recorded absent, now []",
		"not in the recording: hns HcnCreateEndpoint \"handle of ab\"\n  nothing of that kind was recorded"}
	if got := strings.Join(h.Deviations(), "\n"); got != strings.Join(want, "\n") {
		t.Errorf("deviations:\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

// TestReadsFollowTheProgram: a program that compares an endpoint at other times than the recorded one reads what its own changes have led to,
// neither the state before a change that it made nor that after a change that it did not make yet.
func TestReadsFollowTheProgram(t *testing.T) {
	const before, after = `{"Policies":[]}`, `{"Policies":["route"]}`
	balance := record.Exchange{Service: record.HNS, Call: "HcnCreateLoadBalancer", In: in("0", `{"VIP":"198.51.100.11"}`)}
	modify := record.Exchange{Service: record.HNS, Call: "HcnModifyEndpoint", In: in("handle 1", "route")}
	query := func(handle, filter, out string) record.Exchange {
		return record.Exchange{Service: record.HNS, Call: "HcnQueryEndpointProperties", In: in(handle, filter), Out: in(out)}
	}
	recorded := []record.Exchange{
		{Service: record.HNS, Call: "HcnOpenEndpoint", In: in("AB"), Out: in("handle 1")},
		query("handle 1", "of the network", before),
		modify,
		query("handle 1", "", after), // as hcsshim does after a change
		balance,
		query("handle 1", "", after),
	}
	for name, steps := range map[string][]record.Exchange{
		"once more":        {query("", "of the network", before), modify, query("", "of the network", after), balance, query("", "of the network", after)},
		"later":            {balance, query("", "of the network", before), modify, query("", "", after), query("", "of the network", after)},
		"not yet, but all": {balance, query("", "", before), query("", "of the network", before), modify, query("", "", after)},
	} {
		h := New(record.Recording{Exchanges: recorded})
		opened, _ := h.Answer(record.HNS, "HcnOpenEndpoint", in("AB"))
		for i, step := range steps {
			if step.Call != balance.Call {
				step.In = append(slices.Clone(opened.Out), step.In[1:]...)
			}
			got, ok := h.Answer(step.Service, step.Call, step.In)
			if want := short(step.Out); !ok || len(step.Out) > 0 && short(got.Out) != want {
				t.Errorf("%s, %d: %s is answered %s, %v, want %s", name, i, step.Call, short(got.Out), ok, want)
			}
		}
		if _, ok := h.Answer(record.HNS, "HcnQueryEndpointProperties", append(slices.Clone(opened.Out), record.Text("of no one"))); ok {
			t.Errorf("%s: a query that was not recorded is answered", name)
		}
		if m := h.Missing(); len(m) > 0 {
			t.Errorf("%s: %q", name, m)
		}
	}
}

// TestEngineAndNetsh: pseudonyms match what they replaced.
func TestEngineAndNetsh(t *testing.T) {
	h := New(small())
	server := httptest.NewServer(h)
	defer server.Close()
	for _, step := range []struct {
		method, path, body, want string
		code                     int
	}{
		{"GET", "/_ping", "", "OK", 200},
		{"POST", "/v1.41/networks/create", `{"Name":"cbr0","Labels":{"label-1":"x"}}`, `{"Id":"1"}`, 201},
		{"GET", "/v1.41/images/mcr.microsoft.com/windows/nanoserver:1809/json", "", `{"Id":"2"}`, 200},
		{"GET", "/v1.41/volumes", "", `{"message":"not in the recording"}`, 501},
	} {
		request, err := http.NewRequestWithContext(t.Context(), step.method, server.URL+step.path, strings.NewReader(step.body))
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil || string(body) != step.want || response.StatusCode != step.code || response.Header.Get("Api-Version") != "1.41" {
			t.Errorf("%s %s: %d %s, %v", step.method, step.path, response.StatusCode, body, err)
		}
		_ = response.Body.Close()
	}
	result, fields, ok := h.Shim(record.Netsh, "run", [][]byte{[]byte("-f\x00C:\\x\\script.txt\x00"), []byte("interface portproxy add v4tov4\r\ninterface portproxy dump\r\n"), []byte("present")})
	if !ok || result != 0 || string(fields[0]) != "a\r\nb" {
		t.Errorf("netsh: %d %q %v", result, fields, ok)
	}
	if d := h.Deviations(); len(d) != 1 || !strings.Contains(d[0], "GET /volumes") {
		t.Errorf("deviations: %q", d)
	}
}

// TestOwnAddresses: a replayed adapter lacks the address that the recorded program set on it: the program sets it again.
func TestOwnAddresses(t *testing.T) {
	const own = "198.51.100.10/32" // a documentation address (RFC 5737)
	rec := read(t, "testdata/simulated-20348.jsonl")
	h, later := New(rec), false
	for i, e := range rec.Exchanges {
		later = later || strings.Contains(e.Call, "GetUnicastIpAddressTable") && strings.Contains(short(e.Out), own) || e.Call == "CreateUnicastIpAddressEntry"
		if e.Step != "service address" || e.Call != "HNSCall" || !changes(e) {
			continue
		}
		h.position = i
		addresses, found := h.Adapters()["vEthernet (winkube-record)"]
		if !found || later {
			t.Fatalf("the recording has no such adapter when its network is made: %v", h.Adapters())
		}
		for _, a := range addresses {
			if a.String() == own {
				t.Error("the adapter has the address already")
			}
		}
		return
	}
	t.Error("the recording makes no adapter for service addresses")
}
