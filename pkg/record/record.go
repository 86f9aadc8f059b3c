// Package record records this program's calls to its host and their results: Host Networking Service, Host Compute Service, IP Helper, netsh,
// registry and the container engine. `kubelet doctor --record` writes such a file, and tests replay it as a host.
//
//	hcsshim, winipcfg, netsh, Docker's client --> Recorder --> scrub (pure) --> a Header and Exchanges, one JSON document per line
//
// Everything is scrubbed before it is written, so no secret ever reaches the disk. Without a Recorder nothing here runs.
package record

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// Version is the version of the file format.
const Version = 1

// Header is the first line of a recording: it describes the host.
type Header struct {
	Recording int    `json:"recording"` // Version
	Program   string `json:"program"`   // version of the recording program
	// Simulated says that simulators answered instead of Windows: such a file proves nothing about Windows.
	Simulated bool     `json:"simulated"`
	OS        string   `json:"os"`
	Build     int      `json:"build,omitempty"`  // of Windows
	Kernel    string   `json:"kernel,omitempty"` // full version
	Image     string   `json:"image,omitempty"`  // of the container
	Engine    string   `json:"engine,omitempty"` // version of Docker
	API       string   `json:"api,omitempty"`    // of Docker
	HNS       string   `json:"hns,omitempty"`    // version of the Host Networking Service
	Mode      string   `json:"mode,omitempty"`   // of the pod network
	PodCIDR   string   `json:"podCIDR,omitempty"`
	NodeIPs   []string `json:"nodeIPs,omitempty"`
	Missing   []string `json:"missing,omitempty"` // what could not be recorded, and why
	Failed    []string `json:"failed,omitempty"`  // failed steps, which are results too
}

// Services that are recorded.
const (
	HNS      = "hns"
	HCS      = "hcs"
	IPHelper = "iphelper"
	Netsh    = "netsh"
	Registry = "registry"
	Engine   = "engine"
)

// Exchange is one request and its answer.
type Exchange struct {
	N       int     `json:"n"`    // from 1, in the order of the requests
	At      float64 `json:"at"`   // seconds since the start
	Took    float64 `json:"took"` // seconds
	Step    string  `json:"step,omitempty"`
	Service string  `json:"service"`
	Call    string  `json:"call"` // HcnOpenNetwork, "POST /containers/create", netsh
	// In are the arguments, Out the results: JSON documents unchanged, everything else as a string.
	In  []json.RawMessage `json:"in,omitempty"`
	Out []json.RawMessage `json:"out,omitempty"`
	// Code is the HRESULT, the Win32 error, the HTTP status or the exit code.
	Code  uint32 `json:"code"`
	Error string `json:"error,omitempty"` // why there is no answer
}

// Recording is a file.
type Recording struct {
	Header    Header
	Exchanges []Exchange
}

// Recorder collects exchanges in memory. All methods may be called concurrently, and on a nil Recorder, which records nothing.
type Recorder struct {
	begin time.Time

	mu        sync.Mutex
	header    Header
	step      string
	exchanges []Exchange
}

// New returns an empty Recorder.
func New() *Recorder { return &Recorder{begin: time.Now(), header: Header{Recording: Version}} }

// Step names the step of the following exchanges.
func (r *Recorder) Step(name string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.step = name
}

// Describe changes the Header.
func (r *Recorder) Describe(change func(*Header)) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.header)
}

// open is an exchange without its answer.
type open struct {
	r     *Recorder
	index int
	begin time.Time
}

// ask records a request. Requests are ordered by these calls.
func (r *Recorder) ask(service, call string, in ...json.RawMessage) open {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.exchanges = append(r.exchanges, Exchange{N: len(r.exchanges) + 1, At: seconds(now.Sub(r.begin)), Step: r.step, Service: service, Call: call, In: in})
	return open{r, len(r.exchanges) - 1, now}
}

// answer completes an exchange.
func (o open) answer(code uint32, err error, out ...json.RawMessage) {
	o.r.mu.Lock()
	defer o.r.mu.Unlock()
	e := &o.r.exchanges[o.index]
	e.Took, e.Code, e.Out = seconds(time.Since(o.begin)), code, out
	if err != nil {
		e.Error = err.Error()
	}
}

// seconds rounds down to milliseconds: finer times say nothing about a host.
func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }

// Text converts a value for In or Out: a JSON object or array is kept, everything else becomes a string.
func Text(s string) json.RawMessage {
	trimmed := bytes.TrimSpace([]byte(s))
	if len(trimmed) > 0 && (trimmed[0] == '{' || trimmed[0] == '[') && json.Valid(trimmed) {
		return trimmed
	}
	return encode(s)
}

// encode is v as JSON with readable < and >.
func encode(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return json.RawMessage(`"` + "cannot be written as JSON" + `"`)
	}
	return bytes.TrimSpace(b.Bytes())
}

// TextOf reverses Text.
func TextOf(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

// Recording returns the exchanges so far, scrubbed by s.
func (r *Recorder) Recording(s *Scrubber) Recording {
	r.mu.Lock()
	defer r.mu.Unlock()
	return s.scrub(Recording{r.header, r.exchanges})
}

// Write writes a recording, one JSON document per line.
func (rec Recording) Write(w io.Writer) error {
	out := bufio.NewWriter(w)
	for _, line := range append([]json.RawMessage{encode(rec.Header)}, lines(rec.Exchanges)...) {
		if _, err := fmt.Fprintf(out, "%s\n", line); err != nil {
			return err
		}
	}
	return out.Flush()
}

func lines(exchanges []Exchange) (out []json.RawMessage) {
	for _, e := range exchanges {
		out = append(out, encode(e))
	}
	return out
}

// Save writes a recording to a new file, which only its owner can read.
func (rec Recording) Save(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("cannot make the recording: %w", err)
	}
	if err := errors.Join(rec.Write(f), f.Close()); err != nil {
		return fmt.Errorf("cannot write the recording %s: %w", path, err)
	}
	return nil
}

// maxLine limits a line of a recording: an engine's list of images may be long.
const maxLine = 64 << 20

// Read reads a recording. An error names the line.
func Read(r io.Reader) (Recording, error) {
	var rec Recording
	scanner := bufio.NewScanner(r)
	scanner.Buffer(make([]byte, 64<<10), maxLine)
	n := 0
	for ; scanner.Scan(); n++ {
		var to any = &rec.Header
		if n > 0 {
			rec.Exchanges = append(rec.Exchanges, Exchange{})
			to = &rec.Exchanges[n-1]
		}
		decoder := json.NewDecoder(bytes.NewReader(scanner.Bytes()))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(to); err != nil {
			return Recording{}, fmt.Errorf("line %d of the recording: %w", n+1, err)
		}
	}
	switch {
	case scanner.Err() != nil:
		return Recording{}, fmt.Errorf("line %d of the recording: %w", n+1, scanner.Err())
	case n == 0:
		return Recording{}, errors.New("line 1 of the recording: it is empty; want a header")
	case rec.Header.Recording != Version:
		return Recording{}, fmt.Errorf("line 1 of the recording: its format is %d; want %d", rec.Header.Recording, Version)
	}
	return rec, nil
}
