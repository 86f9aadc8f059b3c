package daemon

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestAwaitServices(t *testing.T) {
	for name, c := range map[string]struct {
		docker []string // its state at each query; the last one is repeated
		ticks  int
		ends   bool // patience
		asked  int
	}{
		"all run":           {docker: []string{stateRunning}, asked: 1},
		"none there":        {docker: []string{""}, asked: 1},
		"cannot be asked":   {docker: []string{"error"}, asked: 1},
		"comes up":          {docker: []string{"stopped", "start pending", "start pending", stateRunning}, ticks: 3, asked: 4},
		"never":             {docker: []string{"stopped"}, ticks: 1, ends: true, asked: 2},
		"removed meanwhile": {docker: []string{"stopped", ""}, ticks: 1, asked: 2},
	} {
		asked := 0
		state := func(service string) (string, error) {
			if service != "docker" {
				return stateRunning, nil
			}
			now := c.docker[min(asked, len(c.docker)-1)]
			asked++
			if now == "error" {
				return "", errors.New("access denied")
			}
			return now, nil
		}
		tick, patience := make(chan time.Time), make(chan time.Time)
		go func() {
			for range c.ticks {
				tick <- time.Time{}
			}
			if c.ends {
				close(patience)
			}
		}()
		awaitServices(t.Context(), needed, state, tick, patience)
		if asked != c.asked {
			t.Errorf("%s: asked %d times, want %d", name, asked, c.asked)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	awaitServices(ctx, needed, func(string) (string, error) { return stateStopped, nil }, nil, nil)
}

func TestPriorityClass(t *testing.T) {
	if class, err := priorityClass("ABOVE_NORMAL_PRIORITY_CLASS"); err != nil || class != 0x8000 {
		t.Errorf("%#x, %v", class, err)
	}
	if _, err := priorityClass("high"); err == nil || !strings.Contains(err.Error(), "--windows-priorityclass=high: want one of ABOVE_NORMAL_PRIORITY_CLASS, ") {
		t.Error(err)
	}
}
