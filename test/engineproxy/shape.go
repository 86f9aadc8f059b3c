package main

import (
	"bytes"
	"encoding/json"
	"io"
	"path"
	"reflect"
	"strings"
)

// matches reports whether a call matches a pattern.
func matches(pattern, call string) bool {
	before, after, deep := strings.Cut(pattern, "**")
	if !deep {
		ok, err := path.Match(pattern, call)
		return ok && err == nil
	}
	return len(call) > len(before)+len(after) && strings.HasPrefix(call, before) && strings.HasSuffix(call, after)
}

// decode parses JSON and preserves the notation of numbers.
func decode(data []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var doc any
	err := decoder.Decode(&doc)
	return doc, err
}

// remove removes the field at a path from a document and reports whether its value was not empty. A path has names
// separated by dots. "[]" after a name, or at the beginning, means each element of an array, "*" each field of an
// object.
func remove(doc any, field string) (held bool) {
	name, rest, deeper := strings.Cut(field, ".")
	name, list := strings.CutSuffix(name, "[]")
	if list && name == "" {
		return removeEach(doc, rest)
	}
	object, ok := doc.(map[string]any)
	if !ok {
		return false
	}
	if name == "*" {
		for _, value := range object {
			held = remove(value, rest) || held
		}
		return held
	}
	value, ok := object[name]
	switch {
	case !ok:
		return false
	case list:
		return removeEach(value, rest)
	case deeper:
		return remove(value, rest)
	}
	delete(object, name)
	return !empty(value)
}

func removeEach(doc any, field string) (held bool) {
	elements, _ := doc.([]any)
	for _, element := range elements {
		held = remove(element, field) || held
	}
	return held
}

// empty reports whether a value means nothing: null, false, 0, "", [], {} and lists of such values.
func empty(value any) bool {
	switch v := value.(type) {
	case json.Number:
		return v == "0"
	case []any:
		for _, element := range v {
			if !empty(element) {
				return false
			}
		}
		return true
	case map[string]any:
		return len(v) == 0
	}
	return value == nil || reflect.ValueOf(value).IsZero()
}

// shapeAnswer removes what version v does not support from a response body, and changes values that v formats
// differently.
func shapeAnswer(call string, v version, doc any) {
	for _, c := range answers {
		if !c.in(v) && matches(c.call, call) {
			remove(doc, c.what)
		}
	}
	switch {
	case v < 25 && call == "GET /containers/json": // containers that are being removed are "exited"
		for _, element := range list(doc) {
			exited(element, "State")
		}
	case v < 25 && matches(inspect, call):
		if object, ok := doc.(map[string]any); ok {
			exited(object["State"], "Status")
		}
	case v >= 43 && call == "GET /images/json":
		for _, element := range list(doc) {
			unnamed(element, "RepoTags", "<none>:<none>")
			unnamed(element, "RepoDigests", "<none>@<none>")
		}
	}
}

func list(doc any) []any {
	elements, _ := doc.([]any)
	return elements
}

func exited(doc any, field string) {
	if object, ok := doc.(map[string]any); ok && object[field] == "removing" {
		object[field] = "exited"
	}
}

// unnamed empties a list whose only element is the given word for nothing.
func unnamed(doc any, field, word string) {
	if object, ok := doc.(map[string]any); ok {
		if names := list(object[field]); len(names) == 1 && names[0] == word {
			object[field] = []any{}
		}
	}
}

// shapeStream copies a sequence of JSON documents and shapes each.
func shapeStream(to io.Writer, from io.Reader, call string, v version) error {
	decoder := json.NewDecoder(from)
	decoder.UseNumber()
	for {
		var doc any
		if err := decoder.Decode(&doc); err != nil {
			return err
		}
		shapeAnswer(call, v, doc)
		data, err := json.Marshal(doc)
		if err != nil {
			return err
		}
		if _, err := to.Write(append(data, '\n')); err != nil {
			return err
		}
	}
}
