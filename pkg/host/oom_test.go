package host

import (
	"context"
	"errors"
	"io"
	"runtime"
	"slices"
	"syscall"
	"testing"
)

func TestParseOOM(t *testing.T) {
	for record, want := range map[string]Victim{
		"3,1284,87461931,-;Out of memory: Killed process 4711 (java) total-vm:9123456kB, anon-rss:8001234kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:16000kB oom_score_adj:0\n": {4711, "java"},
		"3,900,5,-;Out of memory: Kill process 12 (a b) c) score 917 or sacrifice child\n SUBSYSTEM=x\n":                                                                            {12, "a b) c"},
		"3,7,5,-;Out of memory (oom_kill_allocating_task): Killed process 8 (sh) total-vm:1kB\n":                                                                                    {8, "sh"},
		"3,7,5,-;Memory cgroup out of memory: Killed process 8 (sh) total-vm:1kB\n":                                                                                                 {},
		"11,7,5,-;Out of memory: Killed process 8 (liar) total-vm:1kB\n":                                                                                                            {}, // facility 1: from a process
		"6,7,5,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/,task=sh,pid=8,uid=0\n":                                         {},
		"6,7,5,-;eth0: Out of memory: Killed process 8 (sh) total-vm\n":                                                                                                             {},
		"Out of memory: Killed process 8 (sh) total-vm":                                                                                                                             {},
		"": {},
	} {
		got, ok := parseOOM(record)
		if got != want || ok != (want != Victim{}) {
			t.Errorf("%q: got %+v, %t, want %+v", record, got, ok, want)
		}
	}
}

func FuzzOOM(f *testing.F) {
	f.Add("3,7,5,-;Out of memory: Killed process 8 (sh) total-vm:1kB\n")
	f.Fuzz(func(t *testing.T, record string) {
		if victim, ok := parseOOM(record); ok && (victim.Name == "" || victim.PID < 0) {
			t.Errorf("%q: %+v", record, victim)
		}
	})
}

// kernelLog returns one of its records, or an error, with each Read.
type kernelLog []any

func (k *kernelLog) Read(p []byte) (int, error) {
	if len(*k) == 0 {
		return 0, io.EOF
	}
	next := (*k)[0]
	*k = (*k)[1:]
	if err, ok := next.(error); ok {
		return 0, err
	}
	return copy(p, next.(string)), nil
}

func TestReadOOM(t *testing.T) {
	log := kernelLog{"6,1,1,-;something\n", "3,7,5,-;Out of memory: Killed process 8 (sh) total-vm:1kB\n", syscall.EPIPE, "3,9,6,-;Out of memory: Killed process 9 (sh) total-vm:1kB\n"}
	var got []Victim
	err := readOOM(&log, func(v Victim) { got = append(got, v) })
	if want := []Victim{{8, "sh"}, {9, "sh"}}; !slices.Equal(got, want) || !errors.Is(err, io.EOF) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

// TestWatchOOM: it ends with its context, even while nothing happens.
func TestWatchOOM(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	begun := make(chan struct{})
	done := make(chan error, 1)
	go func() {
		close(begun)
		done <- WatchOOM(ctx, func(v Victim) { t.Logf("this machine is out of memory: %+v", v) })
	}()
	<-begun
	cancel()
	if err := <-done; err != nil && runtime.GOOS == "linux" {
		t.Skipf("this machine's kernel log is not for us: %v", err)
	} else if err != nil {
		t.Error(err)
	}
}
