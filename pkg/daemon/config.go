package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"

	node "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// Lines maps the path of each field that a configuration file sets, such as "clientConnection.burst", to its line. It omits fields that are null or
// have their type's zero value: a file that spells out every field is equivalent to an empty one. For pointer fields, a zero value counts as set.
type Lines map[string]int

// ReadConfig reads a configuration file in YAML or JSON into a pointer to a struct with JSON tags. It is strict: unknown fields, duplicate fields and
// values of the wrong type are errors, each with its line. It reports all of them, joined.
func ReadConfig(data []byte, into any) (Lines, error) {
	var document node.Node
	if err := node.Unmarshal(data, &document); err != nil {
		return nil, err // it includes the line
	}
	r := configReader{lines: Lines{}}
	if len(document.Content) > 0 {
		r.value(document.Content[0], reflect.TypeOf(into).Elem(), "")
	}
	if err := errors.Join(r.errs...); err != nil {
		return nil, err
	}
	return r.lines, yaml.Unmarshal(data, into)
}

type configReader struct {
	lines Lines
	errs  []error
}

func (r *configReader) problem(n *node.Node, path, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("line %d: %s: %s", n.Line, path, fmt.Sprintf(format, args...)))
}

// value checks one value of the type t.
func (r *configReader) value(n *node.Node, t reflect.Type, path string) {
	if n.Kind == node.AliasNode {
		n = n.Alias
	}
	pointer := t.Kind() == reflect.Pointer
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	_, own := reflect.New(t).Interface().(json.Unmarshaler)
	switch {
	case n.Tag == "!!null":
	case !own && n.Kind == node.MappingNode && (t.Kind() == reflect.Struct || t.Kind() == reflect.Map):
		r.mapping(n, t, path)
	case !own && n.Kind == node.SequenceNode && t.Kind() == reflect.Slice:
		for i, item := range n.Content {
			r.value(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i))
		}
		r.found(n, len(n.Content) > 0, path)
	default:
		r.leaf(n, t, path, pointer)
	}
}

func (r *configReader) mapping(n *node.Node, t reflect.Type, path string) {
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		at := strings.TrimPrefix(path+"."+key.Value, ".")
		if seen[key.Value] {
			r.problem(key, at, "is given twice")
		}
		seen[key.Value] = true
		if t.Kind() == reflect.Map {
			r.value(value, t.Elem(), at)
			continue
		}
		field, near := fieldNamed(t, key.Value)
		switch {
		case field != nil:
			r.value(value, field, at)
		case near != "":
			r.problem(key, at, "unknown field; want %s", near)
		default:
			r.problem(key, at, "unknown field")
		}
	}
	r.found(n, t.Kind() == reflect.Map && len(seen) > 0, path)
}

// leaf decodes a single value as the whole file will be decoded. With pointer, a zero value counts as set.
func (r *configReader) leaf(n *node.Node, t reflect.Type, path string, pointer bool) {
	value := reflect.New(t)
	text, err := node.Marshal(n)
	if err == nil {
		err = yaml.Unmarshal(text, value.Interface())
	}
	if err != nil {
		r.problem(n, path, "%q is no %s", n.Value, kindName(t))
		return
	}
	r.found(n, pointer || !value.Elem().IsZero(), path)
}

func (r *configReader) found(n *node.Node, set bool, path string) {
	if set {
		r.lines[path] = n.Line
	}
}

// kindName describes the type of a value to users.
func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Float32, reflect.Float64:
		return "number"
	case reflect.Slice:
		return "list"
	case reflect.Map:
		return "mapping"
	case reflect.Struct:
		if t.Name() == "Duration" {
			return "duration such as 30s"
		}
	}
	return "valid " + t.Name()
}

// fieldNamed returns the type of a struct's field by its JSON name, or nil; near is then a name that differs only in case.
func fieldNamed(t reflect.Type, name string) (field reflect.Type, near string) {
	for f := range t.Fields() {
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && tag == "" {
			inner, other := fieldNamed(f.Type, name)
			if inner != nil {
				return inner, ""
			}
			near = strings.TrimSpace(near + other)
			continue
		}
		if tag == name {
			return f.Type, ""
		}
		if strings.EqualFold(tag, name) {
			near = tag
		}
	}
	return nil, near
}
