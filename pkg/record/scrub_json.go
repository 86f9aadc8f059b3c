package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// change returns the replacement for a string below keys, "" for an element of a list. If further is false, out replaces the whole value, whatever its type.
type change func(keys []string, text string) (out string, further bool)

// rewrite copies a document and changes its strings. It preserves numbers and the order of fields. Names of fields below labels are strings, too.
func (s *Scrubber) rewrite(raw json.RawMessage, out io.Writer, by change) error {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	w := rewriter{decoder, out, by, s.ours}
	if err := w.value(nil); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON document")
	}
	return nil
}

type rewriter struct {
	in  *json.Decoder
	out io.Writer
	by  change
	// keep says whether labels are kept unchanged.
	keep func(json.RawMessage) bool
}

func (w rewriter) value(keys []string) error {
	if len(keys) > 0 && listed[strings.ToLower(keys[len(keys)-1])] {
		return w.labels(keys)
	}
	if len(keys) > 0 {
		if text, further := w.by(keys, ""); !further {
			var gone json.RawMessage
			if err := w.in.Decode(&gone); err != nil {
				return err
			}
			_, err := w.out.Write(withheld(gone, text))
			return err
		}
	}
	token, err := w.in.Token()
	if err != nil {
		return err
	}
	switch t := token.(type) {
	case json.Delim:
		return w.list(t, keys)
	case string:
		text, _ := w.by(keys, t)
		_, err = w.out.Write(encode(text))
	case json.Number:
		_, err = io.WriteString(w.out, t.String())
	case bool:
		_, err = fmt.Fprint(w.out, t)
	case nil:
		_, err = io.WriteString(w.out, "null")
	}
	return err
}

// labels copies labels unchanged, or like any other value.
func (w rewriter) labels(keys []string) error {
	var raw json.RawMessage
	if err := w.in.Decode(&raw); err != nil {
		return err
	}
	if w.keep(raw) {
		_, err := w.out.Write(raw)
		return err
	}
	inner := w
	inner.in = json.NewDecoder(bytes.NewReader(raw))
	inner.in.UseNumber()
	token, err := inner.in.Token()
	if open, ok := token.(json.Delim); ok && err == nil {
		return inner.list(open, keys)
	}
	_, err = w.out.Write(raw) // null
	return err
}

// withheld replaces a value by one of the same kind, so that readers can still parse the document.
func withheld(gone json.RawMessage, text string) []byte {
	switch {
	case string(gone) == `""`:
		return gone // an empty string reveals nothing
	case gone[0] == '"':
		return encode(text)
	case gone[0] == '{':
		return []byte("{}")
	case gone[0] == '[' && bytes.HasPrefix(bytes.TrimSpace(gone[1:]), []byte(`"`)):
		return encode([]string{text})
	case gone[0] == '[':
		return []byte("[]")
	case gone[0] == 'n', gone[0] == 't', gone[0] == 'f':
		return gone
	}
	return []byte("0")
}

// list copies an object or array, whose opening bracket has been read.
func (w rewriter) list(open json.Delim, keys []string) error {
	if _, err := io.WriteString(w.out, open.String()); err != nil {
		return err
	}
	for first := true; w.in.More(); first = false {
		key := ""
		if !first {
			if _, err := io.WriteString(w.out, ","); err != nil {
				return err
			}
		}
		if open == '{' {
			token, err := w.in.Token()
			if err != nil {
				return err
			}
			key, _ = token.(string)
			name, _ := w.by(append(keys[:len(keys):len(keys)], "\x00name"), key)
			if _, err := fmt.Fprintf(w.out, "%s:", encode(name)); err != nil {
				return err
			}
		}
		if err := w.value(append(keys[:len(keys):len(keys)], key)); err != nil {
			return err
		}
	}
	token, err := w.in.Token()
	if err != nil {
		return err
	}
	_, err = fmt.Fprint(w.out, token)
	return err
}
