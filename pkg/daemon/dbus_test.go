package daemon

import (
	"encoding/binary"
	"errors"
	"reflect"
	"testing"
)

func TestMessages(t *testing.T) {
	body, signature := texts("shutdown", "kubelet", "", "delay")
	for _, m := range []message{
		{kind: busCall, serial: 7, path: "/org/x", iface: "org.x.Manager", member: "Inhibit", target: "org.x", signature: signature, body: body},
		{kind: busReply, serial: 1, replyTo: 7, files: 1, signature: "h", body: []byte{0, 0, 0, 0}},
		{kind: busError, serial: 1 << 30, replyTo: 2, errorName: "org.x.No", body: []byte{}},
	} {
		m.order = binary.LittleEndian
		data := m.encode()
		for cut := range len(data) {
			if _, size, err := decode(data[:cut]); size != 0 || err != nil {
				t.Fatalf("%d of %d bytes: size %d, %v", cut, len(data), size, err)
			}
		}
		got, size, err := decode(append(data, 1, 2, 3))
		if err != nil || size != len(data) || !reflect.DeepEqual(got, m) {
			t.Errorf("got %+v (%d of %d bytes, %v), want %+v", got, size, len(data), err, m)
		}
	}
	if _, _, err := decode([]byte("x123456789012345")); !errors.Is(err, errMessage) {
		t.Errorf("no message: %v", err)
	}
	if _, _, err := decode([]byte{'l', 1, 0, 1, 0, 0, 0, 255, 1, 0, 0, 0, 0, 0, 0, 0}); !errors.Is(err, errMessage) {
		t.Errorf("a huge one: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	body, signature := texts("a", "b")
	f.Add(message{kind: busCall, serial: 1, path: "/x", member: "M", signature: signature, body: body}.encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		m, size, err := decode(data)
		if err == nil && size > len(data) {
			t.Errorf("took %d of %d bytes", size, len(data))
		}
		if m.order != nil {
			delayOf(m)
		}
	})
}
