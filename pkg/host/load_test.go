package host

import (
	"testing"
	"time"
)

func TestLoadOfThisMachine(t *testing.T) {
	l, err := ReadLoad()
	if err != nil {
		t.Fatal(err)
	}
	if l.CPU <= 0 || l.WorkingSet == 0 || l.WorkingSet > l.Memory || l.Memory > l.Capacity {
		t.Errorf("not possible: %+v", l)
	}
}

func TestParseLoad(t *testing.T) {
	cpu, err := parseStat("cpu  100 10 50 9000 77 1 2 3 40 5\ncpu0 1 2 3 4\n")
	if want := 1660 * time.Millisecond; err != nil || cpu != want {
		t.Errorf("got %s (%v), want %s", cpu, err, want)
	}
	var l Load
	if err := l.parseMemory("MemTotal: 1000 kB\nMemFree: 300 kB\nInactive(file): 200 kB\nAnonPages: 100 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\n"); err != nil {
		t.Fatal(err)
	}
	l.parseFaults("pgfault 7\npgmajfault 3\n")
	want := Load{Memory: 700 << 10, WorkingSet: 500 << 10, Resident: 100 << 10, Capacity: 1000 << 10, Swap: 30 << 10, SwapFree: 20 << 10, Faults: 7, MajorFaults: 3}
	if l != want {
		t.Errorf("got %+v\nwant %+v", l, want)
	}
	if tasks := parseTasks("0.00 0.01 0.05 2/345 6789\n"); tasks != 345 {
		t.Errorf("got %d tasks, want 345", tasks)
	}
	if limit := parseLimit("4194304\n", "31337\n", "x"); limit != 31337 {
		t.Errorf("got limit %d, want 31337", limit)
	}
}

func TestWorked(t *testing.T) {
	if got := worked([]processorTimes{{idle: 70, kernel: 80, user: 20}, {idle: 0, kernel: 1, user: 2}}); got != 3300*time.Nanosecond {
		t.Errorf("got %s, want 3.3µs", got)
	}
}

func FuzzParseLoad(f *testing.F) {
	f.Add("cpu 1 2 3 4 5\nMemTotal: 5 kB\npgfault 1\n0 0 0 1/2 3")
	f.Fuzz(func(t *testing.T, text string) {
		var l Load
		_, _ = parseStat(text)
		_ = l.parseMemory(text)
		l.parseFaults(text)
		if l.WorkingSet > l.Memory || l.Memory > l.Capacity || parseTasks(text) < 0 || parseLimit(text) < 0 {
			t.Errorf("not possible: %+v", l)
		}
	})
}
