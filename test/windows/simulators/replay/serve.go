package replay

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/winkube/winkube/pkg/record"
)

// notRecorded is the HRESULT for requests that are not in the recording: E_NOTIMPL.
const notRecorded = 0x80004001

// Shim answers a shim's request to HNS, HCS or netsh, in the format of package sim. ok is false for other services.
func (h *Host) Shim(service, function string, args [][]byte) (result uint32, fields [][]byte, ok bool) {
	switch service {
	case record.HNS, record.HCS:
		if strings.HasPrefix(function, "HcnRegister") {
			return 0, nil, false
		}
		in := []json.RawMessage{}
		for _, arg := range args {
			in = append(in, record.Text(string(arg)))
		}
		if service == record.HCS {
			return h.compute(function, in)
		}
		e, found := h.Answer(service, function, in)
		if !found {
			return notRecorded, [][]byte{nil, []byte(`{"Success":false,"Error":"not in the recording"}`)}, true
		}
		value, problem := []byte(nil), []byte(nil)
		if len(e.Out) > 0 && int32(e.Code) >= 0 {
			value = []byte(record.TextOf(e.Out[0]))
		} else if len(e.Out) > 0 {
			problem = []byte(record.TextOf(e.Out[len(e.Out)-1]))
		}
		return e.Code, [][]byte{value, problem}, true
	case record.Netsh:
		return h.netsh(args)
	}
	return 0, nil, false
}

// compute answers for HCS. A shim's handle is the system's name, so that it equals the recorded handle.
func (h *Host) compute(function string, in []json.RawMessage) (uint32, [][]byte, bool) {
	if function != "HcsOpenComputeSystem" && len(in) > 0 {
		h.mu.Lock()
		i := slices.IndexFunc(h.rec.Exchanges, func(e record.Exchange) bool {
			return e.Call == "HcsOpenComputeSystem" && len(e.In) > 0 && same(record.TextOf(e.In[0]), record.TextOf(in[0])) && len(e.Out) > 0
		})
		if i >= 0 {
			in[0] = h.rec.Exchanges[i].Out[0]
		}
		h.mu.Unlock()
	}
	e, found := h.Answer(record.HCS, function, in)
	if !found {
		return notRecorded, [][]byte{nil}, true
	}
	if len(e.Out) > 0 {
		return e.Code, [][]byte{[]byte(record.TextOf(e.Out[0]))}, true
	}
	return e.Code, [][]byte{nil}, true
}

// netsh answers for netsh.exe. The request is its zero-terminated arguments, the script and whether there is one.
func (h *Host) netsh(args [][]byte) (uint32, [][]byte, bool) {
	if len(args) != 3 {
		return 1, [][]byte{nil}, true
	}
	words := strings.Split(strings.TrimSuffix(string(args[0]), "\x00"), "\x00")
	in := []json.RawMessage{}
	if string(args[2]) == "present" && len(words) == 2 {
		words[1] = record.ScriptName
		lines, _ := json.Marshal(strings.Split(strings.TrimSpace(strings.ReplaceAll(string(args[1]), "\r", "")), "\n"))
		in = append(in, lines)
	}
	e, found := h.Answer(record.Netsh, "netsh "+strings.Join(words, " "), in)
	if !found {
		return 1, [][]byte{nil}, true
	}
	var lines []string
	if len(e.Out) > 0 {
		_ = json.Unmarshal(e.Out[0], &lines) // other programs are not replayed
	}
	return e.Code, [][]byte{[]byte(strings.Join(lines, "\r\n"))}, true
}

var versioned = regexp.MustCompile(`^/v\d+\.\d+/`)

// ServeHTTP answers as the recorded engine did.
func (h *Host) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	header := h.rec.Header
	w.Header().Set("Api-Version", header.API)
	w.Header().Set("Ostype", header.OS)
	w.Header().Set("Server", "Docker/"+header.Engine+" ("+header.OS+")")
	path := versioned.ReplaceAllString(r.URL.Path, "/")
	if path == "/_ping" { // the number of pings depends on connections
		_, _ = io.WriteString(w, "OK")
		return
	}
	if r.URL.RawQuery != "" {
		path += "?" + r.URL.RawQuery
	}
	in := []json.RawMessage{}
	if len(body) > 0 {
		in = append(in, bodyAs(body))
	}
	e, found := h.Answer(record.Engine, r.Method+" "+path, in)
	if !found {
		e.Code, e.Out = http.StatusNotImplemented, []json.RawMessage{json.RawMessage(`{"message":"not in the recording"}`)}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(int(e.Code))
	if len(e.Out) > 0 {
		_, _ = w.Write(bodyOf(e.Out[0]))
	}
}

// bodyAs converts a request body to the recording's format.
func bodyAs(body []byte) json.RawMessage {
	if text := bytes.TrimSpace(body); json.Valid(text) {
		return text
	}
	return record.Text("[" + strconv.Itoa(len(body)) + " bytes]")
}

var length = regexp.MustCompile(`^\[(\d+) bytes\]$`)

// bodyOf returns an answer's body.
func bodyOf(raw json.RawMessage) []byte {
	var list struct{ Stream []json.RawMessage }
	if json.Unmarshal(raw, &list) == nil && list.Stream != nil {
		var out []byte
		for _, one := range list.Stream {
			out = append(append(out, one...), '\n')
		}
		return out
	}
	text := record.TextOf(raw)
	if m := length.FindStringSubmatch(text); m != nil {
		n, _ := strconv.Atoi(m[1]) // digits
		return make([]byte, n)
	}
	return []byte(text)
}

// Adapters returns the host's virtual adapters with their addresses, at this point of the recording. It excludes addresses that the recorded
// program set: the program sets them again.
func (h *Host) Adapters() map[string][]netip.Prefix {
	h.mu.Lock()
	defer h.mu.Unlock()
	out, names := map[string][]netip.Prefix{}, map[string]string{}
	links := h.tableAt("GetIfTable2Ex")
	for _, row := range links {
		if alias, _ := row["Alias"].(string); strings.HasPrefix(alias, "vEthernet (") {
			luid, _ := row["LUID"].(string)
			names[luid], out[alias] = alias, nil
		}
	}
	for _, row := range h.tableAt("GetUnicastIpAddressTable") {
		luid, _ := row["LUID"].(string)
		address, _ := row["Address"].(string)
		if p, err := netip.ParsePrefix(address); err == nil && names[luid] != "" && !h.set(address) {
			out[names[luid]] = append(out[names[luid]], p)
		}
	}
	return out
}

// set reports whether the recorded program set that address.
func (h *Host) set(address string) bool {
	return slices.ContainsFunc(h.rec.Exchanges, func(e record.Exchange) bool {
		var row struct{ Address string }
		return e.Call == "CreateUnicastIpAddressEntry" && e.Code == 0 && len(e.In) > 0 && json.Unmarshal(e.In[0], &row) == nil && row.Address == address
	})
}

// tableAt returns the function's first table after the last change, otherwise the last one before it.
func (h *Host) tableAt(function string) (rows []map[string]any) {
	for i, e := range h.rec.Exchanges {
		if e.Call != function || len(e.Out) == 0 {
			continue
		}
		if json.Unmarshal(e.Out[0], &rows) == nil && i > h.position {
			return rows
		}
	}
	return rows
}
