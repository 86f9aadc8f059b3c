package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// maxEntry is the maximum length of a line of a log file. The engine's are below 100 KiB; those of very old engines have no limit.
const maxEntry = 16 << 20

// entryLines reads a growing file line by line.
type entryLines struct {
	from     *bufio.Reader
	offset   int64  // of the next byte to read
	part     []byte // an incomplete line
	overlong bool   // that line is too long to be kept
}

// linesOf reads file from offset, where a line begins, to end.
func linesOf(file io.ReaderAt, offset, end int64) entryLines {
	return entryLines{from: bufio.NewReaderSize(io.NewSectionReader(file, offset, end-offset), 64<<10), offset: offset}
}

// copy passes entries on until the current end.
func (l *entryLines) copy(ctx context.Context, w *logWriter) error {
	for n := 0; ; n++ {
		if n%64 == 0 && ctx.Err() != nil {
			return fmt.Errorf("cannot read the log: %w", ctx.Err())
		}
		line, err := l.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot read log file: %w", err)
		}
		if e, ok := parseEntry(line); ok {
			if err := w.add(e); err != nil {
				return err
			}
		}
	}
}

// next returns the next line; io.EOF: there is none yet. It is valid until the next call.
func (l *entryLines) next() ([]byte, error) {
	for {
		chunk, err := l.from.ReadSlice('\n')
		l.offset += int64(len(chunk))
		if err == nil && len(l.part) == 0 && !l.overlong {
			return chunk, nil
		}
		if !l.overlong {
			l.part = append(l.part, chunk...)
		}
		if len(l.part) > maxEntry {
			l.part, l.overlong = nil, true
		}
		switch {
		case err == nil && l.overlong:
			l.overlong = false
		case err == nil:
			line := l.part
			l.part = nil
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// lastLines finds the beginning of the last n lines of a log: the index of the file, newest first, and the offset in it. end is the size of the
// newest. The pieces of a line count as one; if both streams are mixed within a long line, its first pieces may be missing.
func lastLines(files []*os.File, end, n int64) (index int, offset int64, err error) {
	count := int64(0)
	for i, file := range files {
		if i > 0 {
			info, err := file.Stat()
			if err != nil {
				return 0, 0, err
			}
			end = info.Size()
		}
		back := backward{file: file, at: end}
		for {
			after := back.at
			line, err := back.next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return 0, 0, err
			}
			e, ok := parseEntry(line)
			if !ok || count > 0 && !e.endsLine() {
				continue
			}
			if count == n {
				return i, after, nil
			}
			count++
		}
	}
	return len(files) - 1, 0, nil
}

// backward reads the lines of a file from its end to its beginning.
type backward struct {
	file io.ReaderAt
	at   int64  // offset of the line that was read last
	text []byte // content before at that was already read
}

const backwardBlock = 32 << 10

// next returns the line before the last one, with its newline if it has one; io.EOF: there is none.
func (b *backward) next() ([]byte, error) {
	searched := 0 // this much of the end of text has no newline, except the line's own
	for {
		if body := bytes.TrimSuffix(b.text, []byte("\n")); len(b.text) > 0 {
			if i := bytes.LastIndexByte(body[:max(0, len(body)-searched)], '\n'); i >= 0 {
				return b.take(i + 1), nil
			}
			searched = len(body)
		}
		start := b.at - int64(len(b.text))
		if start == 0 {
			if len(b.text) == 0 {
				return nil, io.EOF
			}
			return b.take(0), nil
		}
		if len(b.text) > maxEntry {
			return nil, fmt.Errorf("a line of more than %d bytes", maxEntry)
		}
		size := min(max(backwardBlock, int64(len(b.text))), start)
		block := make([]byte, size, size+int64(len(b.text)))
		if _, err := b.file.ReadAt(block, start-size); err != nil {
			return nil, err
		}
		b.text = append(block, b.text...)
	}
}

func (b *backward) take(from int) []byte {
	line := b.text[from:]
	b.text = b.text[:from]
	b.at -= int64(len(line))
	return line
}
