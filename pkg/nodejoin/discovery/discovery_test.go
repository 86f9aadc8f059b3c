package discovery

import (
	"fmt"
	"strings"
	"testing"
)

const (
	good = "abcdef.0123456789abcdef"
	flag = "hash"
)

func TestParseToken(t *testing.T) {
	for _, text := range []string{"", "abcdef", "abcdef.0123456789abcde", "ABCDEF.0123456789abcdef", "abcdef.0123456789abcdef ", "abcdef:0123456789abcdef"} {
		if _, err := ParseToken(text); err == nil || !strings.HasPrefix(err.Error(), "--token: ") || !strings.Contains(err.Error(), "want one such as") {
			t.Errorf("%q: %v", text, err)
		}
	}
	token, err := ParseToken(good)
	if err != nil || token.Bearer() != good {
		t.Fatalf("%v, %v", token, err)
	}
	for _, shown := range []string{fmt.Sprint(token), fmt.Sprintf("%v %+v %#v %s", token, token, token, token)} {
		if strings.Contains(shown, "0123456789abcdef") || !strings.Contains(shown, "abcdef.") {
			t.Errorf("it is shown as %q", shown)
		}
	}
}

func TestParsePins(t *testing.T) {
	digits := strings.Repeat("0a", 32)
	for text, want := range map[string]string{"": "--hash=: want sha256:", digits: "--hash=" + digits, "sha1:" + digits: "--hash=sha1", "sha256:0a": "64 hexadecimal digits", "sha256:" + strings.Repeat("x", 64): "want sha256:"} {
		if _, err := ParsePins(flag, []string{text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := ParsePins(flag, nil); err == nil || !strings.Contains(err.Error(), "--hash is missing") {
		t.Errorf("none: %v", err)
	}
	pins, err := ParsePins(flag, []string{"SHA256:" + strings.ToUpper(digits)})
	if err != nil || pins[0].String() != "sha256:"+digits {
		t.Errorf("%v, %v", pins, err)
	}
}

func TestParseServer(t *testing.T) {
	for text, want := range map[string]string{"10.0.0.1:6443": "10.0.0.1:6443", "api.example.com": "api.example.com:6443", "[fd00::1]:443": "[fd00::1]:443", "fd00::1": "[fd00::1]:6443",
		"": "", "https://10.0.0.1:6443": "", "10.0.0.1:0": "", "10.0.0.1:99999": "", "a b:1": "", "10.0.0.1:6443/x": ""} {
		got, err := ParseServer(text)
		if got != want || (err == nil) != (want != "") || err != nil && !strings.Contains(err.Error(), "want host:port") {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
}
