package pdh

import (
	"testing"

	"github.com/winkube/winkube/test/windows/simulators/calls"
)

func TestPaths(t *testing.T) {
	for path, want := range map[string]uint32{
		`\Memory\Available Bytes`:                    0,
		`\processor(_total)\% processor time`:        0,
		`\Processor Information(*)\% Processor Time`: 0,
		`\Memory(_Total)\Available Bytes`:            noInstance,
		`\Processor\% Processor Time`:                noInstance,
		`\Processor(7)\% Processor Time`:             noInstance,
		`\Processor(0\% Processor Time`:              badName,
		`\Memory\Free Bytes`:                         noCounter,
		`\Nothing\Free Bytes`:                        noObject,
		`Memory\Available Bytes`:                     badName,
		`\\host\Memory\Available Bytes`:              badName,
		``:                                           badName,
	} {
		if got, _, _ := New(&calls.Log{}).Call("PdhValidatePath", 0, path); got != want {
			t.Errorf("%s: %#x, want %#x", path, got, want)
		}
	}
}

// TestQuery: a rate needs two samples, a level one; closing a query invalidates its handles.
func TestQuery(t *testing.T) {
	log := &calls.Log{}
	p := New(log)
	p.Set(`\Memory\Available Bytes`, 1<<30)
	p.Set(`\Processor(1)\% Processor Time`, 12.5)
	call := func(function string, handle uint64, text string, want uint32) (uint64, string) {
		t.Helper()
		result, opened, out := p.Call(function, handle, text)
		if result != want {
			t.Errorf("%s: %#x, want %#x", function, result, want)
		}
		return opened, out
	}
	query, _ := call("PdhOpenQuery", 0, "", 0)
	level, _ := call("PdhAddEnglishCounter", query, `\Memory\Available Bytes`, 0)
	rate, _ := call("PdhAddCounter", query, `\Processor(*)\% Processor Time`, 0)
	call("PdhAddCounter", query+100, `\Memory\Available Bytes`, invalidHandle)
	call("PdhGetFormattedCounterValue", level, "", invalidData)
	call("PdhCollectQueryData", query, "", 0)
	if _, got := call("PdhGetFormattedCounterValue", level, "", 0); got != "1.073741824e+09" {
		t.Errorf("level %q", got)
	}
	call("PdhGetFormattedCounterArray", rate, "", invalidData)
	call("PdhCollectQueryData", query, "", 0)
	if _, got := call("PdhGetFormattedCounterArray", rate, "", 0); got != "0\t0\n1\t12.5\n_Total\t0\n" {
		t.Errorf("rate %q", got)
	}
	call("PdhCloseQuery", query, "", 0)
	call("PdhGetFormattedCounterValue", level, "", invalidHandle)
	call("PdhCloseQuery", query, "", invalidHandle)
	call("PdhLookupPerfName", 0, "", invalidArg)
	if len(log.Unknown()) != 1 {
		t.Errorf("unknown: %v", log.Unknown())
	}
}
