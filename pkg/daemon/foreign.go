package daemon

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Foreign is a setting of upstream's program that this one does not have: a flag, the field of the configuration file with the same meaning, or both.
// It is refused if it promises what is not there, and otherwise accepted and noted.
type Foreign struct {
	Flag, Field string
	Bool        bool     // the flag may stand without a value
	Same        []string // values that ask for what happens anyway; Any: all
	Want        string   // refused: what would be right. Empty: other values have no effect
	Why         string   // what this program does instead
}

// Any in Foreign.Same stands for all values.
const Any = "*"

// Refuses says whether values other than those in Same are errors.
func (f Foreign) Refuses() bool { return f.Want != "" }

// asks says whether a value asks for something that does not happen anyway.
func (f Foreign) asks(value string) bool {
	return value != "" && !slices.ContainsFunc(f.Same, func(same string) bool { return same == Any || strings.EqualFold(same, value) })
}

// refusal is the reason not to accept a value, or nil.
func (f Foreign) refusal(value string) error {
	if !f.Refuses() || !f.asks(value) {
		return nil
	}
	return fmt.Errorf("want %s: %s", f.Want, f.Why)
}

// note says why the setting has no effect.
func (f Foreign) note() string { return "it has no effect: " + f.Why }

// Verdict says what becomes of a value: refused, or accepted without effect; why is empty if the value asks for what happens anyway.
func (f Foreign) Verdict(value string) (why string, refused bool) {
	switch err := f.refusal(value); {
	case err != nil:
		return "refused: " + err.Error(), true
	case f.asks(value):
		return f.note(), false
	}
	return "", false
}

// Asking is a field of a configuration file that asks for what this program does not have.
type Asking struct {
	Path, Value string
	Place       Place
	Why         string // Foreign.Verdict's
	Refused     bool
}

// Asks lists the fields of the files that ask for what is in list; sorted. content is the configuration.
func (c *ConfigFile) Asks(list []Foreign, content any) []Asking {
	var out []Asking
	c.foreign(list, content, func(path, value string, place Place, f Foreign) {
		if why, refused := f.Verdict(value); why != "" {
			out = append(out, Asking{path, value, place, why, refused})
		}
	})
	slices.SortFunc(out, func(a, b Asking) int { return strings.Compare(a.Path, b.Path) })
	return out
}

// refused is the annotation of flags whose values may be errors.
const refused = "refused"

// AddForeign declares the flags of the list, hidden from help. Setting one that has no effect prints why, as pflag does for deprecated flags. It skips
// flags that fs has.
func AddForeign(fs *pflag.FlagSet, list []Foreign) {
	for _, foreign := range list {
		if foreign.Flag == "" || fs.Lookup(foreign.Flag) != nil {
			continue
		}
		flag := fs.VarPF(&foreignValue{foreign: foreign}, foreign.Flag, "", "")
		flag.Hidden = true
		if foreign.Bool {
			flag.NoOptDefVal = "true"
		}
		if foreign.Refuses() {
			flag.Annotations = map[string][]string{refused: {foreign.Want, foreign.Why}}
		} else {
			flag.Deprecated = foreign.note()
		}
	}
}

// foreignValue is the value of a flag that this program does not have.
type foreignValue struct {
	foreign Foreign
	text    string
}

// Set implements pflag.Value.
func (v *foreignValue) Set(text string) error {
	if err := v.foreign.refusal(text); err != nil {
		return err
	}
	v.text = text
	return nil
}

// String implements pflag.Value.
func (v *foreignValue) String() string { return v.text }

// Type implements pflag.Value.
func (v *foreignValue) Type() string { return "value" }

// Refused returns an error for the first field of the files that asks for something that is not there, with its place. content is the configuration.
// A flag on the command line overrides its field.
func (c *ConfigFile) Refused(list []Foreign, content any) error {
	var errs []string
	c.foreign(list, content, func(path, value string, place Place, f Foreign) {
		if err := f.refusal(value); err != nil {
			errs = append(errs, fmt.Sprintf("%s: %s: %s: %s", place, path, value, err))
		}
	})
	if len(errs) == 0 {
		return nil
	}
	return errors.New(slices.Min(errs))
}

// Ignored lists the fields of the files that have no effect, each with its place and the reason; sorted. Fields of bindings and known have one.
func (c *ConfigFile) Ignored(list []Foreign, content any, bindings []Binding, known ...string) []string {
	var out []string
	for _, f := range list {
		known = append(known, f.Field)
	}
	for _, field := range c.Unused(bindings, known...) {
		out = append(out, fmt.Sprintf("Ignored %s: it has no effect here", field))
	}
	c.foreign(list, content, func(path, value string, place Place, f Foreign) {
		if !f.Refuses() && f.asks(value) {
			out = append(out, fmt.Sprintf("Ignored %s (%s): %s", path, place.short(), f.note()))
		}
	})
	slices.Sort(out)
	return slices.Compact(out)
}

// foreign calls do for each field of the files that belongs to one of list, with its value as text.
func (c *ConfigFile) foreign(list []Foreign, content any, do func(path, value string, place Place, f Foreign)) {
	for _, f := range list {
		if f.Field == "" || c.given[f.Flag] {
			continue
		}
		for path, place := range c.Places {
			if path != f.Field && !strings.HasPrefix(path, f.Field+".") || strings.Contains(path, "]") {
				continue
			}
			field := fieldAt(reflect.ValueOf(content).Elem(), path)
			if !field.IsValid() { // an entry of a map
				path, field = f.Field, fieldAt(reflect.ValueOf(content).Elem(), f.Field)
			}
			do(path, fieldText(field), place, f)
		}
	}
}

// fieldText formats a field's value for people.
func fieldText(v reflect.Value) string {
	if _, ok := duration(v); !ok && v.CanAddr() {
		if s, ok := v.Addr().Interface().(fmt.Stringer); ok {
			return s.String()
		}
	}
	return strings.Join(flagTexts(v), ",")
}

// Fields lists the paths of all fields that a configuration file may set in content, a pointer to a struct with JSON tags; sorted. A list or map is one
// field.
func Fields(content any) []string {
	var out []string
	addFields(&out, reflect.TypeOf(content).Elem(), "")
	slices.Sort(out)
	return out
}

func addFields(out *[]string, t reflect.Type, path string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	_, own := reflect.New(t).Interface().(interface{ UnmarshalJSON([]byte) error })
	if own || t.Kind() != reflect.Struct {
		*out = append(*out, path)
		return
	}
	for f := range t.Fields() {
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "" && f.Anonymous {
			addFields(out, f.Type, path)
			continue
		}
		addFields(out, f.Type, strings.TrimPrefix(path+"."+tag, "."))
	}
}
