package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"iter"
)

// The form of requests and answers is told in shim/wire.h.

var order = binary.LittleEndian

const (
	maxFields = 8
	maxField  = 1 << 26
)

// readRequest reads the fields of a request, of which the first names the function.
func readRequest(r io.Reader) ([][]byte, error) {
	var count uint32
	if err := binary.Read(r, order, &count); err != nil {
		return nil, err
	}
	if count == 0 || count > maxFields {
		return nil, fmt.Errorf("a request of %d fields, want 1 to %d", count, maxFields)
	}
	fields := make([][]byte, count)
	for i := range fields {
		var size uint32
		if err := binary.Read(r, order, &size); err != nil {
			return nil, err
		}
		if size > maxField {
			return nil, fmt.Errorf("a field of %d bytes, want at most %d", size, maxField)
		}
		fields[i] = make([]byte, size)
		if _, err := io.ReadFull(r, fields[i]); err != nil {
			return nil, err
		}
	}
	return fields, nil
}

// writeAnswer writes a result and its fields at once.
func writeAnswer(w io.Writer, result uint32, fields ...[]byte) error {
	var b bytes.Buffer
	b.Write(order.AppendUint32(nil, result))
	b.Write(order.AppendUint32(nil, uint32(len(fields))))
	for _, f := range fields {
		b.Write(order.AppendUint32(nil, uint32(len(f))))
		b.Write(f)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// bytesBeforeZeros yields the strings of a list in which each is ended with a zero.
func bytesBeforeZeros(list []byte) iter.Seq[string] {
	return func(yield func(string) bool) {
		for len(list) > 0 {
			i := bytes.IndexByte(list, 0)
			if i < 0 || !yield(string(list[:i])) {
				return
			}
			list = list[i+1:]
		}
	}
}
