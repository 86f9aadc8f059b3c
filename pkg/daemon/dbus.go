package daemon

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// A little of D-Bus (dbus.freedesktop.org/doc/dbus-specification.html), as much as systemd-logind is asked with: calls whose arguments are
// texts, and answers and signals whose bodies are left as they are. It is pure.

// Kinds of messages.
const (
	busCall   = 1
	busReply  = 2
	busError  = 3
	busSignal = 4
)

// message is one message. What its kind does not have is zero.
type message struct {
	kind                                   byte
	serial, replyTo, files                 uint32
	path, iface, member, errorName, target string
	sender                                 string // of what was received
	signature                              string
	body                                   []byte
	order                                  binary.ByteOrder // of body
}

// Codes of header fields.
const (
	fieldPath, fieldInterface, fieldMember, fieldError, fieldReplyTo = 1, 2, 3, 4, 5
	fieldTarget, fieldSender, fieldSignature, fieldFiles             = 6, 7, 8, 9
)

// maxMessage is less than the protocol allows: what we are told is small.
const maxMessage = 1 << 20

// encode writes a message with a body that stands in little-endian order.
func (m message) encode() []byte {
	var fields []byte
	add := func(code byte, kind string, put func([]byte) []byte) {
		fields = append(pad(fields, 8), code, byte(len(kind)))
		fields = append(append(fields, kind...), 0)
		fields = put(fields)
	}
	for _, f := range []struct {
		code       byte
		kind, text string
	}{{fieldPath, "o", m.path}, {fieldInterface, "s", m.iface}, {fieldMember, "s", m.member}, {fieldError, "s", m.errorName}, {fieldTarget, "s", m.target}} {
		if f.text != "" {
			add(f.code, f.kind, func(b []byte) []byte { return appendText(b, f.text) })
		}
	}
	if m.signature != "" {
		add(fieldSignature, "g", func(b []byte) []byte {
			return append(append(append(b, byte(len(m.signature))), m.signature...), 0)
		})
	}
	for code, n := range map[byte]uint32{fieldReplyTo: m.replyTo, fieldFiles: m.files} {
		if n != 0 {
			add(code, "u", func(b []byte) []byte { return binary.LittleEndian.AppendUint32(pad(b, 4), n) })
		}
	}
	out := []byte{'l', m.kind, 0, 1}
	for _, n := range []int{len(m.body), int(m.serial), len(fields)} {
		out = binary.LittleEndian.AppendUint32(out, uint32(n))
	}
	return append(pad(append(out, fields...), 8), m.body...)
}

// texts is the body of a call whose arguments are texts, and its signature.
func texts(all ...string) (body []byte, signature string) {
	for _, t := range all {
		body, signature = appendText(body, t), signature+"s"
	}
	return body, signature
}

func appendText(b []byte, text string) []byte {
	b = binary.LittleEndian.AppendUint32(pad(b, 4), uint32(len(text)))
	return append(append(b, text...), 0)
}

func pad(b []byte, to int) []byte {
	for len(b)%to != 0 {
		b = append(b, 0)
	}
	return b
}

var errMessage = errors.New("cannot read a message of D-Bus: it is malformed")

// decode takes the first message out of b. size 0: more bytes are needed.
func decode(b []byte) (m message, size int, err error) {
	if len(b) < 16 {
		return m, 0, nil
	}
	m.order = binary.LittleEndian
	if b[0] == 'B' {
		m.order = binary.BigEndian
	} else if b[0] != 'l' {
		return m, 0, errMessage
	}
	bodySize, fieldsSize := m.order.Uint32(b[4:]), m.order.Uint32(b[12:])
	if bodySize > maxMessage || fieldsSize > maxMessage {
		return m, 0, fmt.Errorf("%w: it has %d bytes", errMessage, uint64(bodySize)+uint64(fieldsSize))
	}
	begin := (16 + int(fieldsSize) + 7) / 8 * 8
	if size = begin + int(bodySize); len(b) < size {
		return m, 0, nil
	}
	m.kind, m.serial, m.body = b[1], m.order.Uint32(b[8:]), b[begin:size]
	r := reader{b[:16+int(fieldsSize)], 16, m.order, false}
	for r.at < len(r.data) && !r.bad {
		r.align(8)
		m.field(r.byte(), &r)
	}
	if r.bad {
		return m, 0, errMessage
	}
	return m, size, nil
}

// field reads the value of a header field.
func (m *message) field(code byte, r *reader) {
	switch kind := r.signature(); kind {
	case "s", "o":
		text := r.text()
		if to, ok := map[byte]*string{fieldPath: &m.path, fieldInterface: &m.iface, fieldMember: &m.member, fieldError: &m.errorName, fieldTarget: &m.target,
			fieldSender: &m.sender}[code]; ok {
			*to = text
		}
	case "g":
		m.signature = r.signature()
	case "u":
		n := r.number()
		if to, ok := map[byte]*uint32{fieldReplyTo: &m.replyTo, fieldFiles: &m.files}[code]; ok {
			*to = n
		}
	default:
		r.bad = true
	}
}

// reader takes values out of data; bad is set for good when there are not enough.
type reader struct {
	data  []byte
	at    int
	order binary.ByteOrder
	bad   bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n < 0 || n > len(r.data)-r.at {
		r.bad = true
		return nil
	}
	r.at += n
	return r.data[r.at-n : r.at]
}

func (r *reader) align(to int) { r.take((to - r.at%to) % to) }

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) number() uint32 {
	r.align(4)
	if b := r.take(4); b != nil {
		return r.order.Uint32(b)
	}
	return 0
}

func (r *reader) text() string {
	text := string(r.take(int(r.number())))
	r.take(1)
	return text
}

func (r *reader) signature() string {
	text := string(r.take(int(r.byte())))
	r.take(1)
	return text
}

// delayOf reads a variant of a number of microseconds.
func delayOf(m message) time.Duration {
	r := reader{m.body, 0, m.order, false}
	if r.signature() != "t" {
		return 0
	}
	r.align(8)
	if b := r.take(8); b != nil {
		return time.Duration(min(m.order.Uint64(b), 1<<53)) * time.Microsecond
	}
	return 0
}
