// Package pdh simulates Windows performance counters (pdh.dll): known paths have values; PDH's errors answer all others.
//
//	upstream's winstats, gopsutil --> shim pdh.dll --> PDH.Call --> values, calls.Log
package pdh

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/winkube/winkube/test/windows/simulators/calls"
)

// Error codes of pdhmsg.h.
const (
	noObject      = 0xc0000bb8 // PDH_CSTATUS_NO_OBJECT
	noCounter     = 0xc0000bb9 // PDH_CSTATUS_NO_COUNTER
	badName       = 0xc0000bc0 // PDH_CSTATUS_BAD_COUNTERNAME
	noInstance    = 0x800007d1 // PDH_CSTATUS_NO_INSTANCE
	invalidHandle = 0xc0000bbc // PDH_INVALID_HANDLE
	invalidData   = 0xc0000bc6 // PDH_INVALID_DATA: a rate needs two samples
	invalidArg    = 0xc0000bbd // PDH_INVALID_ARGUMENT
)

// counter is a counter of a performance object ("perfmon" of Windows Server 2016 to 2025).
type counter struct {
	object, name string
	instances    []string // empty: the object has no instances
	rate         bool     // needs two samples
}

var processors = []string{"0", "1", "0,0", "0,1", "0,_Total", "_Total"}

// known are the counters that Kubernetes' winstats and gopsutil read.
var known = []counter{
	{object: "Processor", name: "% Processor Time", instances: []string{"0", "1", "_Total"}, rate: true},
	{object: "Processor Information", name: "% Processor Time", instances: processors, rate: true},
	{object: "Memory", name: "Available Bytes"},
	{object: "Memory", name: "Committed Bytes"},
	{object: "Memory", name: "Cache Bytes"},
	{object: "Process", name: "Working Set - Private", instances: []string{"_Total", "kubelet"}},
	{object: "System", name: "Processor Queue Length"},
	{object: "System", name: "System Up Time"},
	{object: "Network Adapter", name: "Bytes Sent/sec", instances: []string{"Ethernet"}, rate: true},
	{object: "Network Adapter", name: "Bytes Received/sec", instances: []string{"Ethernet"}, rate: true},
	{object: "Network Adapter", name: "Packets Outbound Errors", instances: []string{"Ethernet"}},
	{object: "Network Adapter", name: "Packets Outbound Discarded", instances: []string{"Ethernet"}},
	{object: "Network Adapter", name: "Packets Received Errors", instances: []string{"Ethernet"}},
	{object: "Network Adapter", name: "Packets Received Discarded", instances: []string{"Ethernet"}},
	{object: "LogicalDisk", name: "% Free Space", instances: []string{"C:", "_Total"}},
	{object: "PhysicalDisk", name: "% Disk Time", instances: []string{"0 C:", "_Total"}, rate: true},
}

// selected is a counter in a query, with the instances that match its path.
type selected struct {
	query     uint64
	counter   counter
	instances []string
}

// PDH is the simulated library, shared by all processes. It is safe for concurrent use.
type PDH struct {
	log *calls.Log

	mu       sync.Mutex
	queries  map[uint64]int // number of samples
	counters map[uint64]selected
	last     uint64
	values   map[string]float64 // by path
}

// New returns a PDH whose counters are all 0.
func New(log *calls.Log) *PDH {
	return &PDH{log: log, queries: map[uint64]int{}, counters: map[uint64]selected{}, values: map[string]float64{}}
}

// Set sets the value of the counter with a path (\Object(Instance)\Name).
func (p *PDH) Set(path string, value float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, code := find(path); code != 0 {
		panic(fmt.Sprintf("counter %s is not known: %#x", path, code))
	}
	p.values[strings.ToLower(path)] = value
}

// Call serves the shim: a function, a handle (0: none) and a text. Functions that open return a handle; functions that read return
// "number", or lines "instance<TAB>number".
func (p *PDH) Call(function string, handle uint64, text string) (result uint32, opened uint64, out string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	unknown := false
	switch function {
	case "PdhOpenQuery":
		if text != "" {
			result = invalidArg // log files as data sources are not simulated
			unknown = true
			break
		}
		p.last++
		opened = p.last
		p.queries[opened] = 0
	case "PdhAddCounter", "PdhAddEnglishCounter":
		opened, result = p.add(handle, text)
	case "PdhValidatePath":
		_, result = find(text)
	case "PdhRemoveCounter":
		if _, ok := p.counters[handle]; !ok {
			result = invalidHandle
		}
		delete(p.counters, handle)
	case "PdhCollectQueryData":
		if _, ok := p.queries[handle]; !ok {
			result = invalidHandle
			break
		}
		p.queries[handle]++
	case "PdhCloseQuery":
		result = p.closeQuery(handle)
	case "PdhGetFormattedCounterValue", "PdhGetFormattedCounterArray":
		out, result = p.read(handle, strings.HasSuffix(function, "Array"))
	default:
		result, unknown = invalidArg, true
	}
	p.log.Add(calls.Call{Service: "pdh", Function: function, Args: []string{text}, Result: result, Unknown: unknown})
	return result, opened, out
}

func (p *PDH) add(query uint64, path string) (uint64, uint32) {
	if _, ok := p.queries[query]; !ok {
		return 0, invalidHandle
	}
	s, code := find(path)
	if code != 0 {
		return 0, code
	}
	s.query = query
	p.last++
	p.counters[p.last] = s
	return p.last, 0
}

func (p *PDH) closeQuery(query uint64) uint32 {
	if _, ok := p.queries[query]; !ok {
		return invalidHandle
	}
	delete(p.queries, query)
	for handle, s := range p.counters {
		if s.query == query {
			delete(p.counters, handle)
		}
	}
	return 0
}

func (p *PDH) read(handle uint64, array bool) (string, uint32) {
	s, ok := p.counters[handle]
	if !ok {
		return "", invalidHandle
	}
	if samples := p.queries[s.query]; samples == 0 || s.counter.rate && samples < 2 {
		return "", invalidData
	}
	var b strings.Builder
	for _, instance := range s.instances {
		value := p.values[strings.ToLower(path(s.counter, instance))]
		if !array {
			return fmt.Sprint(value), 0
		}
		fmt.Fprintf(&b, "%s\t%v\n", instance, value)
	}
	return b.String(), 0
}

func path(c counter, instance string) string {
	if len(c.instances) == 0 {
		return `\` + c.object + `\` + c.name
	}
	return `\` + c.object + `(` + instance + `)\` + c.name
}

// find parses a path, \Object(Instance)\Counter; * means all instances.
func find(text string) (selected, uint32) {
	rest, ok := strings.CutPrefix(text, `\`)
	object, name, split := strings.Cut(rest, `\`)
	if !ok || !split || object == "" || name == "" || strings.HasPrefix(object, `\`) {
		return selected{}, badName
	}
	object, instance, has := strings.Cut(object, "(")
	if has {
		if instance, ok = strings.CutSuffix(instance, ")"); !ok {
			return selected{}, badName
		}
	}
	if !slices.ContainsFunc(known, func(c counter) bool { return strings.EqualFold(c.object, object) }) {
		return selected{}, noObject
	}
	i := slices.IndexFunc(known, func(c counter) bool { return strings.EqualFold(c.object, object) && strings.EqualFold(c.name, name) })
	if i < 0 {
		return selected{}, noCounter
	}
	c := known[i]
	switch {
	case len(c.instances) == 0 && !has:
		return selected{counter: c, instances: []string{""}}, 0
	case instance == "*" && has && len(c.instances) > 0:
		return selected{counter: c, instances: c.instances}, 0
	case has && slices.ContainsFunc(c.instances, func(i string) bool { return strings.EqualFold(i, instance) }):
		return selected{counter: c, instances: []string{instance}}, 0
	}
	return selected{}, noInstance
}
