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

// progress reads what ginkgo prints and shows how far it is: one line that is rewritten on a terminal, else a line per failure and one
// per minute. ginkgo prints a test's lines when it is over.
type progress struct {
	out      *os.File
	terminal bool
	total    int
	start    time.Time

	mu      sync.Mutex
	partial []byte
	verdict string // of the test whose name comes next
	named   string // the last test that was named
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

// Write parses a piece of ginkgo's output.
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

// headline begins the lines of a test that is over: "• [5.213 seconds]", "• [FAILED] [5.213 seconds]", "S [SKIPPED] [0.001 seconds]".
var headline = regexp.MustCompile(`^[•SP] (?:\[([A-Z]+)\] )?\[[0-9.]+ seconds\]`)

// labels end the line with a test's name and repeat what it says; a failure also has what kind of thing failed inside.
var labels = regexp.MustCompile(` \[sig-[^\[\]]*\]$| \[It\]`)

func (p *progress) line(line string) {
	if strings.HasPrefix(line, "[sig-") {
		p.named = labels.ReplaceAllString(line, "")
	}
	if p.verdict != "" {
		// The name is in the line below the headline; when tests do not run in parallel it came before.
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

// close shows the end and stops.
func (p *progress) close() {
	close(p.stop)
	p.stopped.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	fmt.Fprintf(p.out, "%d/%d, %d failed, %s\n", p.done, p.total, p.failed, p.elapsed())
}
