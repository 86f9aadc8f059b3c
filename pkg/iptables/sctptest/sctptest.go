// Package sctptest opens SCTP associations by raw packets, so that tests of packet filter rules need no SCTP in the
// kernel. Servers answer as endpoints do; a client learns from the cookie who answered and which client address that
// server saw.
//
//	Dial: INIT --> INIT-ACK (cookie) --> COOKIE-ECHO --> COOKIE-ACK       Send: DATA --> SACK
package sctptest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
)

// kind is the type of a chunk (RFC 9260, section 3.2).
type kind uint8

const (
	data       kind = 0
	initiate   kind = 1
	initAck    kind = 2
	sack       kind = 3
	cookieEcho kind = 10
	cookieAck  kind = 11
)

// packet is an SCTP packet with one chunk.
type packet struct {
	from, to uint16
	tag      uint32 // verification tag: the receiver's
	kind     kind
	flags    byte
	body     []byte
}

const (
	headerSize  = 12
	chunkSize   = 4
	cookieParam = 7
)

// marshal returns the packet with its checksum, padded to four bytes.
func (p *packet) marshal() []byte {
	out := binary.BigEndian.AppendUint16(nil, p.from)
	out = binary.BigEndian.AppendUint16(out, p.to)
	out = binary.BigEndian.AppendUint32(out, p.tag)
	out = append(out, 0, 0, 0, 0, byte(p.kind), p.flags)
	out = binary.BigEndian.AppendUint16(out, uint16(chunkSize+len(p.body)))
	out = append(out, p.body...)
	for len(out)%4 != 0 {
		out = append(out, 0)
	}
	binary.LittleEndian.PutUint32(out[8:], checksum(out))
	return out
}

// checksum is the CRC32c of a packet whose field for it counts as zero.
func checksum(b []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(0, table, b[:8])
	sum = crc32.Update(sum, table, make([]byte, 4))
	return crc32.Update(sum, table, b[headerSize:])
}

var (
	errShort    = errors.New("the packet is too short")
	errChecksum = errors.New("the packet's checksum is wrong")
)

// parse reads a packet with its first chunk, and checks its checksum.
func parse(b []byte) (*packet, error) {
	if len(b) < headerSize+chunkSize {
		return nil, errShort
	}
	if binary.LittleEndian.Uint32(b[8:]) != checksum(b) {
		return nil, errChecksum
	}
	size := int(binary.BigEndian.Uint16(b[headerSize+2:]))
	if size < chunkSize || headerSize+size > len(b) {
		return nil, errShort
	}
	return &packet{from: binary.BigEndian.Uint16(b), to: binary.BigEndian.Uint16(b[2:]), tag: binary.BigEndian.Uint32(b[4:]), kind: kind(b[headerSize]),
		flags: b[headerSize+1], body: bytes.Clone(b[headerSize+chunkSize : headerSize+size])}, nil
}

// greeting is the body of INIT, and with a cookie that of INIT-ACK.
func greeting(tag uint32, cookie string) []byte {
	out := binary.BigEndian.AppendUint32(nil, tag)
	out = binary.BigEndian.AppendUint32(out, 1<<16) // window
	out = binary.BigEndian.AppendUint16(out, 1)     // streams out
	out = binary.BigEndian.AppendUint16(out, 1)     // and in
	out = binary.BigEndian.AppendUint32(out, 1)     // first TSN
	if cookie == "" {
		return out
	}
	out = binary.BigEndian.AppendUint16(out, cookieParam)
	out = binary.BigEndian.AppendUint16(out, uint16(4+len(cookie)))
	return append(out, cookie...)
}

// readGreeting returns the sender's tag and the cookie; "": it has none.
func readGreeting(body []byte) (tag uint32, cookie string) {
	const fixed = 16
	if len(body) < fixed {
		return 0, ""
	}
	tag = binary.BigEndian.Uint32(body)
	if rest := body[fixed:]; len(rest) > 4 && binary.BigEndian.Uint16(rest) == cookieParam {
		if size := int(binary.BigEndian.Uint16(rest[2:])); size >= 4 && size <= len(rest) {
			cookie = string(rest[4:size])
		}
	}
	return tag, cookie
}

// answer returns what a server with a name sends to a client for a packet; nil: nothing. Its tags are the clients' plus
// one, so that it needs no state.
func answer(p *packet, name, client string) *packet {
	out := &packet{from: p.to, to: p.from}
	switch p.kind {
	case initiate:
		tag, _ := readGreeting(p.body)
		out.kind, out.tag, out.body = initAck, tag, greeting(tag+1, name+" "+client)
	case cookieEcho:
		out.kind, out.tag = cookieAck, p.tag-1
	case data:
		out.kind, out.tag, out.body = sack, p.tag-1, make([]byte, 12)
	default:
		return nil
	}
	return out
}
