package main

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"
)

// progress parses ginkgo's output and shows the progress: one updated line on a terminal, otherwise a line per failure
// and one per minute. ginkgo prints a test's lines after the test.
type progress struct {
	out      *os.File
	terminal bool
	total    int
	start    time.Time

	mu      sync.Mutex
	partial []byte
	verdict string // of the test whose name follows
	named   string // the last test name
	done    int
	failed  int
	last    string
	stop    chan struct{}
	stopped sync.WaitGroup
}

func newProgress(out *os.File, total int) *progress {
	info, err := out.Stat()
	p := &progress{out: out, total: total, start: time.Now(), stop: make(chan struct{})}
	p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	every := time.Minute
	if p.terminal {
		every = time.Second
	}
	p.stopped.Go(func() {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				p.mu.Lock()
				p.show()
				p.mu.Unlock()
			case <-p.stop:
				return
			}
		}
	})
	return p
}

// Write parses a part of ginkgo's output.
func (p *progress) Write(data []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.partial = append(p.partial, data...)
	for {
		i := bytes.IndexByte(p.partial, '\n')
		if i < 0 {
			return len(data), nil
		}
		p.line(string(p.partial[:i]))
		p.partial = p.partial[i+1:]
	}
}

// headline matches the first line of a finished test: "• [5.213 seconds]", "• [FAILED] [5.213 seconds]", "S [SKIPPED]
// [0.001 seconds]".
var headline = regexp.MustCompile(`^[•SP] (?:\[([A-Z]+)\] )?\[[0-9.]+ seconds\]`)

// labels matches the end of the line with a test's name, which repeats parts of the name. Failures also contain the
// node type that failed.
var labels = regexp.MustCompile(` \[sig-[^\[\]]*\]$| \[It\]`)

func (p *progress) line(line string) {
	if strings.HasPrefix(line, "[sig-") || strings.HasPrefix(line, externalPrefix) {
		p.named = labels.ReplaceAllString(line, "")
	}
	if p.verdict != "" {
		// The name is on the line after the headline; if tests do not run in parallel it came earlier.
		p.finished(p.verdict, p.named)
		p.verdict = ""
	}
	if match := headline.FindStringSubmatch(line); match != nil {
		p.verdict = match[1]
		if p.verdict == "" {
			p.verdict = "PASSED"
		}
	}
}

func (p *progress) finished(verdict, name string) {
	p.done++
	p.last = strings.TrimSpace(name)
	if verdict != "PASSED" && verdict != "SKIPPED" {
		p.failed++
		p.clear()
		fmt.Fprintf(p.out, "[%s] %s %s\n", p.elapsed(), strings.ToLower(verdict), p.last)
	}
	if p.terminal {
		p.show()
	}
}

func (p *progress) elapsed() time.Duration { return time.Since(p.start).Round(time.Second) }

func (p *progress) clear() {
	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}

func (p *progress) show() {
	text := fmt.Sprintf("%d/%d, %d failed, %s, last: %s", p.done, p.total, p.failed, p.elapsed(), p.last)
	if !p.terminal {
		fmt.Fprintln(p.out, text)
		return
	}
	p.clear()
	fmt.Fprintf(p.out, "%.110s", text)
}

// close prints the final state and stops.
func (p *progress) close() {
	close(p.stop)
	p.stopped.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	fmt.Fprintf(p.out, "%d/%d, %d failed, %s\n", p.done, p.total, p.failed, p.elapsed())
}
