package logs

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/podspec"
)

// entry is one message of a container's log as the engine's json-file driver writes it: a line with its newline, or a piece of a line that did not
// fit into the engine's buffer of 16 KiB, or that had no newline when its writer ended.
type entry struct {
	Log    string    `json:"log"`
	Stream string    `json:"stream"` // stdout or stderr
	Time   time.Time `json:"time"`
}

const (
	streamStdout = "stdout"
	streamStderr = "stderr"
)

// parseEntry parses one line of a json-file log; false if a crash of the host has corrupted it.
func parseEntry(line []byte) (entry, bool) {
	var e entry
	// After a power failure a file may have a hole of zeros before later output.
	line = bytes.TrimLeft(line, "\x00")
	if err := json.Unmarshal(line, &e); err != nil || e.Stream != streamStdout && e.Stream != streamStderr {
		return entry{}, false
	}
	return e, true
}

// endsLine says whether e is a whole line, or the last piece of one.
func (e entry) endsLine() bool { return strings.HasSuffix(e.Log, "\n") }

// maxLine is the size limit for buffering an incomplete line. Longer lines are passed on in pieces, possibly interleaved with lines of the other
// stream.
const maxLine = 1 << 20

// logWriter writes entries as v1.PodLogOptions request. It joins the pieces of a line and writes it with one timestamp.
type logWriter struct {
	out, err   io.Writer // nil: discarded
	timestamps bool
	since      time.Time
	lines      [2]pieces // of stdout and stderr
}

// pieces is the incomplete last line of a stream.
type pieces struct {
	text  []byte
	begun bool      // part of the line was buffered or written
	at    time.Time // of its first piece
}

// newLogWriter also applies the options that select streams and limit bytes. sinceSeconds counts from now.
func newLogWriter(options *v1.PodLogOptions, now time.Time, out, errOut io.Writer) *logWriter {
	w := &logWriter{out: out, err: errOut, timestamps: options.Timestamps, since: since(options, now)}
	if stream := options.Stream; stream != nil {
		switch *stream {
		case v1.LogStreamStdout:
			w.err = nil
		case v1.LogStreamStderr:
			w.out = nil
		}
	}
	if options.LimitBytes != nil {
		left := *options.LimitBytes
		if w.out != nil {
			w.out = limited{w.out, &left}
		}
		if w.err != nil {
			w.err = limited{w.err, &left}
		}
	}
	return w
}

// since is the minimum time of entries to write; zero: no minimum.
func since(options *v1.PodLogOptions, now time.Time) time.Time {
	switch {
	case options.SinceTime != nil:
		return options.SinceTime.Time
	case options.SinceSeconds != nil:
		return now.Add(-podspec.Seconds(*options.SinceSeconds))
	}
	return time.Time{}
}

// add writes the next entry, or buffers it until its line ends. It returns write errors.
func (w *logWriter) add(e entry) error {
	to, line := w.out, &w.lines[0]
	if e.Stream == streamStderr {
		to, line = w.err, &w.lines[1]
	}
	if to == nil {
		return nil
	}
	if !line.begun {
		line.begun, line.at = true, e.Time
		if w.timestamps {
			line.text = append(e.Time.UTC().AppendFormat(line.text, timestampLayout), ' ')
		}
	}
	line.text = append(line.text, e.Log...)
	ends := e.endsLine()
	if !ends && len(line.text) < maxLine {
		return nil
	}
	err := w.pass(to, line)
	line.begun = !ends
	return err
}

// timestampLayout always has nine digits, so that lines stay aligned (as upstream's --timestamps).
const timestampLayout = "2006-01-02T15:04:05.000000000Z07:00"

// pass writes the buffered part of a line.
func (w *logWriter) pass(to io.Writer, line *pieces) error {
	text := line.text
	line.text = line.text[:0]
	if cap(line.text) > maxLine/4 {
		line.text = nil
	}
	if len(text) == 0 || line.at.Before(w.since) {
		return nil
	}
	_, err := to.Write(text)
	return err
}

// end writes the remaining incomplete lines.
func (w *logWriter) end() error {
	var errs []error
	for i, to := range []io.Writer{w.out, w.err} {
		if line := &w.lines[i]; line.begun && to != nil {
			errs = append(errs, w.pass(to, line))
			line.begun = false
		}
	}
	return errors.Join(errs...)
}

var errLimit = errors.New("limit of bytes reached")

// limited passes on the first bytes of several streams in total, and then fails.
type limited struct {
	to   io.Writer
	left *int64
}

func (l limited) Write(p []byte) (int, error) {
	room := min(int64(len(p)), *l.left)
	*l.left -= room
	if n, err := l.to.Write(p[:room]); err != nil {
		return n, err
	}
	if *l.left == 0 {
		return int(room), errLimit
	}
	return len(p), nil
}

// messages converts the engine's output to entries: each Write is one message of a stream, preceded by its time if requested.
type messages struct {
	to     *logWriter
	stream string
	timed  bool
}

func (m messages) Write(p []byte) (int, error) {
	e := entry{Log: string(p), Stream: m.stream}
	if m.timed {
		if at, rest, found := strings.Cut(e.Log, " "); found {
			if t, err := time.Parse(time.RFC3339Nano, at); err == nil {
				e.Time, e.Log = t, rest
			}
		}
	}
	return len(p), m.to.add(e)
}
