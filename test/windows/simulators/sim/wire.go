package sim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
)

// shim/wire.h describes the format of requests and answers.

var order = binary.LittleEndian

const (
	maxFields = 8
	maxField  = 1 << 26
)

// errRequest means that the bytes received are not a request.
var errRequest = errors.New("not a request of a shim")

// readRequest reads the fields of a request; the first names the function. With an error it returns the fields read completely. The
// error is errRequest, or a read error if the program ended or the simulators are closed.
func readRequest(r io.Reader) ([][]byte, error) {
	var count uint32
	if err := binary.Read(r, order, &count); err != nil {
		return nil, fmt.Errorf("cannot read the number of fields: %w", err)
	}
	if count == 0 || count > maxFields {
		return nil, fmt.Errorf("%w: it has %d fields, want 1 to %d", errRequest, count, maxFields)
	}
	var fields [][]byte
	for i := range count {
		var size uint32
		if err := binary.Read(r, order, &size); err != nil {
			return fields, fmt.Errorf("cannot read the size of field %d: %w", i, err)
		}
		if size > maxField {
			return fields, fmt.Errorf("%w: field %d has %d bytes, want at most %d", errRequest, i, size, maxField)
		}
		field := make([]byte, size)
		if n, err := io.ReadFull(r, field); err != nil {
			return fields, fmt.Errorf("cannot read field %d: %d of %d bytes: %w", i, n, size, err)
		}
		fields = append(fields, field)
	}
	return fields, nil
}

// writeAnswer writes a result and its fields in one write.
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

// ask sends a request and reads its answer, as the shims do.
func ask(conn io.ReadWriter, fields ...string) (result uint32, answer [][]byte, err error) {
	var b bytes.Buffer
	b.Write(order.AppendUint32(nil, uint32(len(fields))))
	for _, f := range fields {
		b.Write(order.AppendUint32(nil, uint32(len(f))))
		b.WriteString(f)
	}
	if _, err := conn.Write(b.Bytes()); err != nil {
		return 0, nil, err
	}
	var head [2]uint32 // the result and the number of fields
	if err := binary.Read(conn, order, &head); err != nil {
		return 0, nil, err
	}
	for range min(head[1], maxFields) {
		var size uint32
		if err := binary.Read(conn, order, &size); err != nil {
			return 0, nil, err
		}
		field := make([]byte, min(size, maxField))
		if _, err := io.ReadFull(conn, field); err != nil {
			return 0, nil, err
		}
		answer = append(answer, field)
	}
	return head[0], answer, nil
}

// HNSCall returns HNSCall of vmcompute.dll for Linux programs such as the Windows engine; dial connects to the World. An error is an HRESULT
// other than S_OK, or a failed connection.
func HNSCall(dial func() (net.Conn, error)) func(method, path, request string) (string, error) {
	return func(method, path, request string) (string, error) {
		conn, err := dial()
		if err != nil {
			return "", fmt.Errorf("HNS is not reached: %w", err)
		}
		defer conn.Close()
		result, answer, err := ask(conn, "hns HNSCall", method, path, request)
		switch {
		case err != nil || len(answer) != 2:
			return "", fmt.Errorf("HNS is not reached: %d fields, %w", len(answer), err)
		case result != 0:
			return "", fmt.Errorf("%s (%#x)", answer[1], result)
		}
		return string(answer[0]), nil
	}
}

// bytesBeforeZeros yields the strings of a list of zero-terminated strings.
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
