package record

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/pkg/command/commandtest"
)

// planted are secrets and foreign names, each in a typical place on a host.
var planted = map[string]string{
	"environment":       `{"Id":"1","Config":{"Env":["DB_PASSWORD=hunter2hunter2"],"Image":"corp.example.com/billing:7"}}`,
	"info":              `{"Name":"WIN-SECRETHOST","HttpProxy":"http://jane:s3cr3tpass@proxy.corp:3128","Labels":["owner=janedoe"],"Swarm":{"NodeAddr":"172.20.9.7"},"RegistryConfig":{"Mirrors":["https://mirror.corp"]}}`,
	"credential spec":   `{"HostConfig":{"SecurityOpt":["credentialspec=raw://{\"CmsPlugins\":[\"ActiveDirectory\"],\"Sid\":\"S-1-5-21-777-888\"}"]}}`,
	"others' container": `[{"Names":["/payroll-backend"],"Image":"corp.example.com/payroll:1","Command":"run --key=abcdefgh","Labels":{"team":"finance-blue"}}]`,
	"others' network":   `{"Name":"finance-net","Subnets":[{"AddressPrefix":"172.20.9.0/24","GatewayAddress":"172.20.9.1"}],"DNSSuffix":"ad.corp.example.com"}`,
	"hardware address":  `{"MacAddress":"B4-96-91-51-E9-04"}`,
	"token":             `{"text":"bearer eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl and abcdef.0123456789abcdef"}`,
	"key":               `{"text":"-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n-----END PRIVATE KEY-----"}`,
	"public address":    `{"IPAddress":"20.50.60.70","Other":"2a02:8108:1234:5678::1"}`,
	"profile":           `["C:\\Users\\janedoe\\AppData\\Local\\Temp\\x"]`,
	"key of a label":    `{"Labels":{"corp.example.com/owner":"jane"}}`,
	"hex in a label":    `{"Labels":{"io.containerd.key":"0badc0de0badc0de0badc0de0badc0de0badc0de0badc0de0badc0de0badc0de"}}`,
	"an adapter":        `{"Alias":"vEthernet (Payroll Net)"}`,
	"an error":          `"cannot connect to payroll-backend at 172.20.9.7: password=hunter2hunter2"`,
}

// found are texts that must not remain from any of the planted documents.
var found = []string{"hunter2", "WIN-SECRETHOST", "s3cr3tpass", "janedoe", "172.20.9.", "mirror.corp", "S-1-5-21", "payroll", "corp.example", "abcdefgh", "finance", "B4-96-91", "51-E9-04",
	"eyJhbGci", "abcdef.0123", "MIIEvQ", "20.50.60.70", "2a02:8108", "0badc0de"}

// TestNoSecrets plants secrets in every place of an exchange and searches the file for them. Our own names and addresses stay.
func TestNoSecrets(t *testing.T) {
	r := New()
	r.Describe(func(h *Header) {
		h.Image = "corp.example.com/billing:7"
		h.NodeIPs = []string{"172.20.9.7"}
		h.Failed = []string{"x: payroll-backend"}
	})
	for name, document := range planted {
		for _, in := range []bool{true, false} {
			open := r.ask(Engine, "GET /containers/payroll-backend/json?host=WIN-SECRETHOST", Text(document))
			if in {
				open.answer(200, errors.New("at WIN-SECRETHOST.ad.corp.example.com: "+document))
				continue
			}
			open.answer(200, nil, Text(document), encode(document), encode([]string{name, document}))
		}
	}
	r.ask(HNS, "HNSCall", encode("GET"), encode("/networks/")).answer(0, nil, Text(`[{"ID":"8E3C5C5A-0000-4000-8000-000000000001","Name":"winkube-record","Version":55834574851,"Subnets":[{"AddressPrefix":"10.244.213.0/24","GatewayAddress":"10.244.213.2"}]}]`))
	plain := func(a string) bool {
		addr, err := netip.ParseAddr(a)
		return err == nil && netip.MustParsePrefix("10.244.213.0/24").Contains(addr)
	}
	path := filepath.Join(t.TempDir(), "recording.jsonl")
	if err := r.Recording(NewScrubber("WIN-SECRETHOST", []string{"winkube"}, plain)).Save(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range found {
		if at := bytes.Index(bytes.ToLower(text), bytes.ToLower([]byte(secret))); at >= 0 {
			t.Errorf("the file has %q: ...%s...", secret, text[max(0, at-100):min(len(text), at+100)])
		}
	}
	for _, own := range []string{`"winkube-record"`, `"10.244.213.0/24"`, `"10.244.213.2"`, `8E3C5C5A-0000-4000-8000-000000000001`, `"Version":55834574851`} {
		if !bytes.Contains(text, []byte(own)) {
			t.Errorf("the file lacks %s", own)
		}
	}
	rec, err := Read(bytes.NewReader(text))
	if err != nil || len(rec.Exchanges) != 2*len(planted)+1 {
		t.Errorf("read back: %d exchanges, %v", len(rec.Exchanges), err)
	}
	if err := rec.Save(path); err == nil {
		t.Error("a file that is there was overwritten")
	}
}

// shimGroup is what the kubelet asks of containerd by way of Docker: which shim a container joins.
const shimGroup = `{"Annotations":{"io.containerd.runc.v2.group":"feb747de8e85b9dfae5cde4b46773fc94f044a8836accbda2aa1cd8e1536c329"}}`

// TestPseudonyms: a name has the same pseudonym everywhere; ranges contain the same addresses as before; names that every host has stay.
func TestPseudonyms(t *testing.T) {
	r := New()
	r.ask(HNS, "x").answer(0, nil, Text(`{"Name":"Corp Net","Subnets":[{"AddressPrefix":"192.168.40.0/22"}],"IPs":["192.168.41.7","192.168.43.255","192.168.44.7","8.8.8.8","8.8.4.4","fe80::1234:5678%12"]}`),
		Text(`{"text":"vEthernet (Corp Net) 255.255.252.0 0.0.0.0/0 127.0.0.1 10.0.20348.2113 00-15-5D-11-80-00 00-15-5D-11-8F-FF 12:30:45"}`), Text(`{"Name":"nat","NetworkAdapterName":"Ethernet 2"}`), Text(shimGroup))
	out := r.Recording(NewScrubber("a", nil, nil)).Exchanges[0].Out
	var one struct {
		Name    string
		Subnets []struct{ AddressPrefix netip.Prefix }
		IPs     []string
	}
	if err := json.Unmarshal(out[0], &one); err != nil {
		t.Fatalf("%v: %s", err, out[0])
	}
	in := func(i int) bool { return one.Subnets[0].AddressPrefix.Contains(netip.MustParseAddr(one.IPs[i])) }
	if !in(0) || !in(1) || in(2) || one.Subnets[0].AddressPrefix.Masked() != one.Subnets[0].AddressPrefix || one.Subnets[0].AddressPrefix.String() == "192.168.40.0/22" && one.IPs[0] == "192.168.41.7" && one.IPs[2] == "192.168.44.7" {
		t.Errorf("ranges: %s", out[0])
	}
	if !strings.HasPrefix(one.IPs[3], "11.") || !strings.HasPrefix(one.IPs[4], "11.") || one.IPs[3] == one.IPs[4] || !strings.HasSuffix(one.IPs[5], "%12") {
		t.Errorf("addresses: %s", out[0])
	}
	for _, want := range []string{"vEthernet (" + one.Name + ") 255.255.252.0 0.0.0.0/0 127.0.0.1 10.0.20348.2113 00-15-5D-", "00 00-15-5D-", "F-FF 12:30:45"} {
		if !strings.Contains(string(out[1]), want) {
			t.Errorf("%s lacks %q", out[1], want)
		}
	}
	if string(out[2]) != `{"Name":"nat","NetworkAdapterName":"Ethernet 2"}` {
		t.Errorf("common names: %s", out[2])
	}
	if string(out[3]) != shimGroup {
		t.Errorf("containerd's annotation: %s", out[3])
	}
}

// TestTransport: bodies pass unchanged, and are recorded by their type.
func TestTransport(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch r.URL.Path {
		case "/v1.41/stream":
			fmt.Fprint(w, `{"status":"a"}`+"\n"+`{"status":"b"}`)
		case "/v1.41/logs":
			_, _ = w.Write([]byte{1, 0, 0, 0, 0xff})
		case "/v1.41/echo":
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write(body)
		}
	}))
	defer server.Close()
	r := New()
	client := &http.Client{Transport: r.Transport(http.DefaultTransport)}
	for _, step := range []struct{ path, body, want string }{
		{"/v1.41/echo?q=1", `{"a":1}`, `{"n":1,"at":0,"took":0,"service":"engine","call":"POST /echo?q=1","in":[{"a":1}],"out":[{"a":1}],"code":201}`},
		{"/v1.41/stream", "", `{"n":2,"at":0,"took":0,"service":"engine","call":"POST /stream","out":[{"stream":[{"status":"a"},{"status":"b"}]}],"code":200}`},
		{"/v1.41/logs", "secret", `{"n":3,"at":0,"took":0,"service":"engine","call":"POST /logs","in":["[6 bytes]"],"out":["[5 bytes]"],"code":200}`},
		{"/_ping", "", `{"n":4,"at":0,"took":0,"service":"engine","call":"POST /_ping","code":200}`},
	} {
		response, err := client.Post(server.URL+step.path, "application/json", strings.NewReader(step.body))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(response.Body); err != nil {
			t.Error(err)
		}
		_ = response.Body.Close()
		list := r.Recording(NewScrubber("", nil, nil)).Exchanges
		last := list[len(list)-1]
		last.At, last.Took = 0, 0
		if got := string(encode(last)); got != step.want {
			t.Errorf("got  %s\nwant %s", got, step.want)
		}
	}
	server.Close()
	if _, err := client.Get(server.URL + "/gone"); err == nil {
		t.Error("a server that is gone answered")
	}
	if list := r.Recording(NewScrubber("", nil, nil)).Exchanges; list[4].Error == "" {
		t.Errorf("an error is not recorded: %+v", list[4])
	}
	if (*Recorder)(nil).Transport(http.DefaultTransport) != http.DefaultTransport {
		t.Error("no Recorder, but something around the transport")
	}
}

// TestRunner: a script's lines replace its path.
func TestRunner(t *testing.T) {
	fake := commandtest.New()
	fake.Install("netsh", func([]byte, []string) ([]byte, error) { return []byte("a\r\nb"), nil })
	fake.Install("sc.exe", func([]byte, []string) ([]byte, error) { return nil, commandtest.Exit(5, "denied") })
	r := New()
	script := filepath.Join(t.TempDir(), "script.txt")
	if err := os.WriteFile(script, []byte("line one\r\nline two\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := r.Runner(fake)
	if out, err := run.Run(t.Context(), nil, "netsh", "-f", script); err != nil || string(out) != "a\r\nb" {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := run.Run(t.Context(), nil, "sc.exe", "query"); err == nil {
		t.Error("an error was lost")
	}
	list := r.Recording(NewScrubber("", nil, nil)).Exchanges
	if got := fmt.Sprintf("%s %s %s %s", list[0].Service, list[0].Call, list[0].In, list[0].Out); got != `netsh netsh -f SCRIPT [["line one","line two"]] [["a","b"]]` {
		t.Error(got)
	}
	if list[1].Service != "sc" || list[1].Code != 5 || !strings.Contains(list[1].Error, "denied") {
		t.Errorf("%+v", list[1])
	}
}

// TestWalk: every started step is reverted in reverse order, after an error and after Ctrl-C; steps that need a failed one are skipped.
func TestWalk(t *testing.T) {
	for _, test := range []struct {
		name, fails, interrupts, want string
	}{
		{"all", "", "", "+a +b +c -c -b -a"},
		{"an error", "b", "", "+a +b -c -b -a"}, // c needs b
		{"interrupted", "", "b", "+a +b -b -a"},
		{"the first", "a", "", "+a +b +c -c -b -a"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		var did []string
		step := func(name string, needs ...string) Step {
			return Step{Name: name, What: "does " + name, Needs: needs, Do: func(ctx context.Context) error {
				did = append(did, "+"+name)
				if name == test.interrupts {
					cancel()
				}
				if name == test.fails {
					return errors.New("no\nluck")
				}
				return nil
			}, Undo: func(ctx context.Context) error {
				did = append(did, "-"+name)
				return ctx.Err()
			}}
		}
		r, out := New(), &strings.Builder{}
		err := r.Walk(ctx, out, []Step{step("a"), step("b"), step("c", "b")})
		cancel()
		if got := strings.Join(did, " "); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
		if whole := test.fails == "" && test.interrupts == ""; (err == nil) != whole {
			t.Errorf("%s: %v", test.name, err)
		}
		h := r.Recording(NewScrubber("", nil, nil)).Header
		if test.fails != "" && !slices.Equal(h.Failed, []string{test.fails + ": no luck"}) {
			t.Errorf("%s: the recording says %q", test.name, h.Failed)
		}
		if !strings.HasPrefix(out.String(), "This changes the host as follows") || !strings.Contains(out.String(), "  c: does c\n") {
			t.Errorf("%s: it said %s", test.name, out)
		}
	}
}

// TestRead: anything but a recording is refused, with the line.
func TestRead(t *testing.T) {
	for text, want := range map[string]string{
		"": "line 1", "{": "line 1", `{"recording":2}`: "format is 2; want 1", `{"recording":1}` + "\n{\n": "line 2", `{"recording":1,"colour":"red"}`: `unknown field "colour"`,
		`{"recording":1}` + "\n" + `{"n":"x"}`: "line 2",
	} {
		if _, err := Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// FuzzScrub: a document stays a document with the same fields, whatever it contains.
func FuzzScrub(f *testing.F) {
	for _, text := range planted {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !json.Valid([]byte(text)) {
			t.Skip()
		}
		s := NewScrubber("host1", nil, nil)
		if out := s.value(json.RawMessage(text)); !json.Valid(out) {
			t.Errorf("%s became %s", text, out)
		}
	})
}
