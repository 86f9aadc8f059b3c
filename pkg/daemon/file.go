package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Binding says that a field of a configuration file and a flag set the same value. Path is the field's path, as in Lines.
type Binding struct{ Path, Flag string }

// Place is a line of a file.
type Place struct {
	File string
	Line int
}

func (p Place) String() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

// short has the file without its directory.
func (p Place) short() string { return Place{filepath.Base(p.File), p.Line}.String() }

// ConfigFile records which file set which field of a configuration. The zero value has no file.
type ConfigFile struct {
	Places map[string]Place  // by path of the field
	Data   []byte            // content of the last file
	taken  map[string]string // path by flag, for flags whose value comes from a file
	given  map[string]bool   // flags on the command line
}

// Read reads the file name into content, a pointer to a struct with JSON tags, as ReadConfig does. A second file overrides the first: it merges maps
// and replaces all other fields that it sets.
func (c *ConfigFile) Read(name string, content any) error {
	data, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	c.Data = data
	lines, err := ReadConfig(data, content)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if c.Places == nil {
		c.Places = map[string]Place{}
	}
	for path, line := range lines {
		c.Places[path] = Place{name, line}
	}
	return nil
}

// Apply sets flags to the values in content that the files have set. Flags on the command line take precedence.
func (c *ConfigFile) Apply(fs *pflag.FlagSet, bindings []Binding, content any) error {
	c.taken = map[string]string{}
	for _, b := range bindings {
		f := fs.Lookup(b.Flag)
		place, set := c.place(b.Path)
		if !set || f == nil || f.Changed {
			continue
		}
		field := fieldAt(reflect.ValueOf(content).Elem(), b.Path)
		if !field.IsValid() {
			return fmt.Errorf("%s: the configuration has no such field", b.Path)
		}
		for _, text := range flagTexts(field) {
			if err := fs.Set(b.Flag, text); err != nil {
				return fmt.Errorf("%s: %s: %w", place, b.Path, err)
			}
		}
		c.taken[b.Flag] = b.Path
	}
	return nil
}

// Follow records the source of each flag's value if flags are bound directly to the fields: the files, if they set its field and the command line
// does not. Sets, Located, Refused and Ignored use that.
func (c *ConfigFile) Follow(fs *pflag.FlagSet, bindings []Binding) {
	c.taken, c.given = map[string]string{}, map[string]bool{}
	fs.Visit(func(f *pflag.Flag) { c.given[f.Name] = true })
	for _, b := range bindings {
		f := fs.Lookup(b.Flag)
		if _, set := c.place(b.Path); set && f != nil && !f.Changed {
			c.taken[b.Flag] = b.Path
		}
	}
}

// Sets says whether the value of a flag comes from the files.
func (c *ConfigFile) Sets(flag string) bool { _, ok := c.taken[flag]; return ok }

// place returns where a field was set, or the first field below it.
func (c *ConfigFile) place(path string) (Place, bool) {
	if p, ok := c.Places[path]; ok {
		return p, true
	}
	for at, p := range c.Places {
		if strings.HasPrefix(at, path+".") || strings.HasPrefix(at, path+"[") {
			return p, true
		}
	}
	return Place{}, false
}

// Located adds the place in the file to an error about a field, or about a flag whose value came from there.
func (c *ConfigFile) Located(err error) error {
	if err == nil {
		return nil
	}
	name, ok := strings.CutPrefix(err.Error(), "--")
	if end := strings.IndexAny(name, "=: "); ok && end > 0 {
		if path, ok := c.taken[name[:end]]; ok {
			place, _ := c.place(path)
			return fmt.Errorf("%s: %s: %w", place, path, err)
		}
	}
	if path, _, ok := strings.Cut(err.Error(), ": "); ok {
		if place, set := c.place(path); set {
			return fmt.Errorf("%s: %w", place, err)
		}
	}
	return err
}

// Unused lists the fields that were set but have no binding, each with its place; sorted. known are further paths that have an effect.
func (c *ConfigFile) Unused(bindings []Binding, known ...string) []string {
	for _, b := range bindings {
		known = append(known, b.Path)
	}
	var out []string
	for path, place := range c.Places {
		acts := slices.ContainsFunc(known, func(k string) bool { return path == k || strings.HasPrefix(path, k+".") })
		if acts || path == "apiVersion" || path == "kind" || strings.HasSuffix(path, "]") || strings.Contains(path, "].") {
			continue
		}
		out = append(out, fmt.Sprintf("%s (%s)", path, place.short()))
	}
	slices.Sort(out)
	return out
}

// Effective sets the fields of content to the values of their flags, except those that came from the file.
func (c *ConfigFile) Effective(fs *pflag.FlagSet, bindings []Binding, content any) error {
	for _, b := range bindings {
		f := fs.Lookup(b.Flag)
		if _, own := c.taken[b.Flag]; f == nil || own {
			continue
		}
		field := fieldAt(reflect.ValueOf(content).Elem(), b.Path)
		if !field.IsValid() {
			return fmt.Errorf("%s: the configuration has no such field", b.Path)
		}
		if err := setField(field, f.Value); err != nil {
			return fmt.Errorf("cannot write --%s as %s: %w", b.Flag, b.Path, err)
		}
	}
	return nil
}

// fieldAt finds a field by its path of JSON names and allocates nil pointers on the way. It returns the zero Value if there is none.
func fieldAt(v reflect.Value, path string) reflect.Value {
	for part := range strings.SplitSeq(path, ".") {
		for v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		if v.Kind() != reflect.Struct {
			return reflect.Value{}
		}
		if v = member(v, part); !v.IsValid() {
			return v
		}
	}
	return v
}

func member(v reflect.Value, name string) reflect.Value {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		tag, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous && tag == "" {
			if inner := member(v.Field(i), name); inner.IsValid() {
				return inner
			}
		}
		if tag == name && tag != "" {
			return v.Field(i)
		}
	}
	return reflect.Value{}
}

// duration returns the time.Duration inside a value of a type with a field Duration.
func duration(v reflect.Value) (reflect.Value, bool) {
	for v.Kind() == reflect.Struct {
		if v = v.FieldByName("Duration"); !v.IsValid() {
			return v, false
		}
	}
	return v, v.Type() == reflect.TypeFor[time.Duration]()
}

// flagTexts formats a field's value for its flag: one text, or several for a flag that can be repeated.
func flagTexts(v reflect.Value) []string {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return nil
		}
		v = v.Elem()
	}
	if d, ok := duration(v); ok {
		return []string{time.Duration(d.Int()).String()}
	}
	switch v.Kind() {
	case reflect.Slice:
		var items []string
		for i := range v.Len() {
			items = append(items, fmt.Sprint(v.Index(i)))
		}
		return []string{strings.Join(items, ",")}
	case reflect.Map:
		return mapTexts(v)
	}
	return []string{fmt.Sprint(v)}
}

// mapTexts formats a map as key=value,..., and a map of lists, as of headers, as separate "key: value" items.
func mapTexts(v reflect.Value) []string {
	var items []string
	lists := v.Type().Elem().Kind() == reflect.Slice
	for _, key := range v.MapKeys() {
		value := v.MapIndex(key)
		if !lists {
			items = append(items, fmt.Sprintf("%v=%v", key, value))
			continue
		}
		for i := range value.Len() {
			items = append(items, fmt.Sprintf("%v: %v", key, value.Index(i)))
		}
	}
	slices.Sort(items)
	if lists {
		return items
	}
	return []string{strings.Join(items, ",")}
}

// setField sets a field to a flag's value.
func setField(v reflect.Value, value pflag.Value) error {
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	text := value.String()
	if d, ok := duration(v); ok {
		parsed, err := time.ParseDuration(text)
		d.SetInt(int64(parsed))
		return err
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		on, err := strconv.ParseBool(text)
		v.SetBool(on)
		return err
	case reflect.Int32, reflect.Int64:
		n, err := strconv.ParseFloat(text, 64) // some flags accept fractions where the file has a whole number
		v.SetInt(int64(n))
		return err
	case reflect.Uint32:
		n, err := strconv.ParseUint(text, 10, 32)
		v.SetUint(n)
		return err
	case reflect.Float32, reflect.Float64:
		n, err := strconv.ParseFloat(text, 64)
		v.SetFloat(n)
		return err
	case reflect.Slice:
		return setSlice(v, value)
	case reflect.Map:
		return setMap(v, text)
	default:
		return fmt.Errorf("no flag has a value of type %s", v.Type())
	}
	return nil
}

func setSlice(v reflect.Value, value pflag.Value) error {
	list, ok := value.(pflag.SliceValue)
	if !ok || v.Type().Elem().Kind() != reflect.String {
		return fmt.Errorf("no flag has a value of type %s", v.Type())
	}
	v.SetZero()
	for _, item := range list.GetSlice() {
		v.Set(reflect.Append(v, reflect.ValueOf(item).Convert(v.Type().Elem())))
	}
	return nil
}

// setMap parses the text of a flag of the form name=value,...
func setMap(v reflect.Value, text string) error {
	v.SetZero()
	for part := range strings.SplitSeq(strings.Trim(text, "[]"), ",") {
		name, item, ok := strings.Cut(part, "=")
		if !ok {
			continue
		}
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
		var entry reflect.Value
		switch v.Type().Elem().Kind() {
		case reflect.Bool:
			on, err := strconv.ParseBool(item)
			if err != nil {
				return err
			}
			entry = reflect.ValueOf(on)
		case reflect.String:
			entry = reflect.ValueOf(item)
		default:
			return errors.New("no flag has such a map")
		}
		v.SetMapIndex(reflect.ValueOf(name), entry)
	}
	return nil
}
