package sctptest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
)

// bitwise is CRC32c by its definition: the polynomial 0x1edc6f41, reflected.
func bitwise(b []byte) uint32 {
	sum := ^uint32(0)
	for _, c := range b {
		sum ^= uint32(c)
		for range 8 {
			sum = sum>>1 ^ 0x82f63b78*(sum&1)
		}
	}
	return ^sum
}

func TestChecksum(t *testing.T) {
	if got := bitwise([]byte("123456789")); got != 0xe3069283 {
		t.Fatalf("got %#x for nine digits", got)
	}
	p := packet{from: 1, to: 2, tag: 3, kind: data, body: []byte("odd")}
	b := p.marshal()
	zero := slices.Concat(b[:8], make([]byte, 4), b[12:])
	if got, want := binary.LittleEndian.Uint32(b[8:]), bitwise(zero); got != want || len(b)%4 != 0 {
		t.Errorf("got %#x in %d bytes, want %#x", got, len(b), want)
	}
}

func TestPackets(t *testing.T) {
	client := packet{from: 40000, to: 80, kind: initiate, body: greeting(7, "")}
	got, err := parse(client.marshal())
	if err != nil || got.from != 40000 || got.to != 80 || got.kind != initiate || !bytes.Equal(got.body, client.body) {
		t.Fatalf("got %+v, %v", got, err)
	}
	ack := answer(got, "b", "10.9.0.2")
	if tag, cookie := readGreeting(ack.body); ack.tag != 7 || tag != 8 || cookie != "b 10.9.0.2" || ack.from != 80 || ack.to != 40000 {
		t.Errorf("got %+v with tag %d and cookie %q", ack, tag, cookie)
	}
	if done := answer(&packet{from: 40000, to: 80, tag: 8, kind: cookieEcho}, "b", ""); done.kind != cookieAck || done.tag != 7 {
		t.Errorf("got %+v", done)
	}
	if answer(ack, "b", "") != nil {
		t.Error("a server answers an answer")
	}
	for text, want := range map[string]error{"short": errShort, "sixteen bytes of it": errChecksum} {
		if _, err := parse([]byte(text)); !errors.Is(err, want) {
			t.Errorf("%q: got %v, want %v", text, err, want)
		}
	}
}
