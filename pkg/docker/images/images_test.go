package images

import (
	"encoding/json"
	"strings"
	"testing"
)

// FuzzFollows: whatever the engine sends, the reading of a pull ends, and an error in it is not lost.
func FuzzFollows(f *testing.F) {
	f.Add(`{"id":"a","status":"x"}`)
	f.Add(`{"errorDetail":{"message":"m"}}`)
	f.Add(`{`)
	f.Fuzz(func(t *testing.T, text string) {
		if err := follows(strings.NewReader(`{"status":"x"}`+text), func() {}); err == nil && !strings.HasPrefix(strings.TrimSpace(text), "{") && strings.Trim(text, " \t\r\n") != "" &&
			!json.Valid([]byte(text)) {
			t.Errorf("%q: no error", text)
		}
		if err := follows(strings.NewReader(`{"error":"no"}`+text), func() {}); err == nil || err.Error() != "no" {
			t.Errorf("%q: %v", text, err)
		}
	})
}
