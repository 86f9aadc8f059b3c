package app

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/daemon"
)

// fieldFlags declares flags bound to fields of a KubeletConfiguration. A flag's default is the field's current value, so that an absent flag leaves
// the field unchanged.
type fieldFlags struct {
	*pflag.FlagSet
	fields []daemon.Binding
}

func (f *fieldFlags) bind(path, flag string) {
	f.fields = append(f.fields, daemon.Binding{Path: path, Flag: flag})
}

func (f *fieldFlags) text(path, flag string, field *string, usage string) {
	f.StringVar(field, flag, *field, usage)
	f.bind(path, flag)
}

func (f *fieldFlags) texts(path, flag string, field *[]string, usage string) {
	f.StringSliceVar(field, flag, *field, usage)
	f.bind(path, flag)
}

func (f *fieldFlags) pairs(path, flag string, field *map[string]string, usage string) {
	f.StringToStringVar(field, flag, *field, usage)
	f.bind(path, flag)
}

func (f *fieldFlags) on(path, flag string, field *bool, usage string) {
	f.BoolVar(field, flag, *field, usage)
	f.bind(path, flag)
}

func (f *fieldFlags) number(path, flag string, field *int32, usage string) {
	f.Int32Var(field, flag, *field, usage)
	f.bind(path, flag)
}

func (f *fieldFlags) long(path, flag string, field *int64, usage string) {
	f.Int64Var(field, flag, *field, usage)
	f.bind(path, flag)
}

func (f *fieldFlags) rate(path, flag string, field *int32, usage string) {
	f.value(path, flag, (*rateValue)(field), usage)
}

func (f *fieldFlags) every(path, flag string, field *metav1.Duration, usage string) {
	f.DurationVar(&field.Duration, flag, field.Duration, usage)
	f.bind(path, flag)
}

func (f *fieldFlags) value(path, flag string, value pflag.Value, usage string) {
	f.Var(value, flag, usage)
	f.bind(path, flag)
}

// rateValue is a rate per second. The field is a whole number; "5.0", which older kubelets accepted, counts as one.
type rateValue int32

// Set implements pflag.Value.
func (v *rateValue) Set(text string) error {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil || n != math.Trunc(n) || math.Abs(n) > math.MaxInt32 {
		return fmt.Errorf("want a whole number")
	}
	*v = rateValue(n)
	return nil
}

// String implements pflag.Value.
func (v *rateValue) String() string { return strconv.Itoa(int(*v)) }

// Type implements pflag.Value.
func (v *rateValue) Type() string { return "number" }

// leastValue is a flag value of eviction signals and thresholds: signal<threshold as in upstream's flags, or signal=threshold as in its files.
type leastValue map[string]string

// Set implements pflag.Value. It replaces previous values.
func (v *leastValue) Set(text string) error {
	*v = leastValue{}
	for part := range strings.SplitSeq(text, ",") {
		at := strings.IndexAny(part, "<=")
		switch {
		case strings.TrimSpace(part) == "":
		case at <= 0:
			return fmt.Errorf("%q: want a signal and the least that is left, as in memory.available<100Mi", part)
		default:
			(*v)[strings.TrimSpace(part[:at])] = strings.TrimSpace(part[at+1:])
		}
	}
	return nil
}

// String implements pflag.Value, in the form of the files.
func (v *leastValue) String() string { return joinPairs(*v) }

// Type implements pflag.Value.
func (v *leastValue) Type() string { return "thresholds" }

// joinPairs formats a map as key=value,..., sorted.
func joinPairs[V any](pairs map[string]V) string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(pairs)) {
		parts = append(parts, fmt.Sprintf("%s=%v", key, pairs[key]))
	}
	return strings.Join(parts, ",")
}

// gatesValue is a flag value of feature gates. The first Set replaces the default, further ones add to it.
type gatesValue struct {
	gates *map[string]bool
	given bool
}

// Set implements pflag.Value.
func (v *gatesValue) Set(text string) error {
	if !v.given {
		*v.gates, v.given = nil, true
	}
	for part := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(part) == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		if err != nil {
			return fmt.Errorf("%q: want name=true or name=false", part)
		}
		if *v.gates == nil {
			*v.gates = map[string]bool{}
		}
		(*v.gates)[strings.TrimSpace(name)] = on
	}
	return nil
}

// String implements pflag.Value.
func (v *gatesValue) String() string {
	if v.gates == nil {
		return ""
	}
	return joinPairs(*v.gates)
}

// Type implements pflag.Value.
func (v *gatesValue) Type() string { return "gates" }

// taintsValue is a flag value of taints. The first Set replaces the default, further ones add to it.
type taintsValue struct {
	taints *[]v1.Taint
	given  bool
}

// Set implements pflag.Value.
func (v *taintsValue) Set(text string) error {
	if !v.given {
		*v.taints, v.given = nil, true
	}
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		pair, effect, ok := strings.Cut(part, ":")
		key, value, _ := strings.Cut(pair, "=")
		taint := v1.Taint{Key: key, Value: value, Effect: v1.TaintEffect(effect)}
		if !ok || checkTaint(taint) != nil {
			return fmt.Errorf("%s: %w", part, errTaint)
		}
		*v.taints = append(*v.taints, taint)
	}
	return nil
}

// String implements pflag.Value.
func (v *taintsValue) String() string {
	if v.taints == nil {
		return ""
	}
	var parts []string
	for _, taint := range *v.taints {
		parts = append(parts, taint.ToString())
	}
	return strings.Join(parts, ",")
}

// Type implements pflag.Value.
func (v *taintsValue) Type() string { return "taints" }

var errTaint = fmt.Errorf("want key=value:NoSchedule, :PreferNoSchedule or :NoExecute")

func checkTaint(taint v1.Taint) error {
	switch taint.Effect {
	case v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute:
		if taint.Key != "" {
			return nil
		}
	}
	return errTaint
}

// headersValue is a flag value of one HTTP header, which may be secret: String omits it, and Set returns no error, which would include it. Text that
// is not a header is stored under the name "", which checkHeaders finds.
type headersValue struct {
	headers *map[string][]string
	given   bool
}

// Set implements pflag.Value.
func (v *headersValue) Set(text string) error {
	if !v.given {
		*v.headers, v.given = map[string][]string{}, true
	}
	name, content, ok := strings.Cut(text, ":")
	if name = strings.TrimSpace(name); !ok {
		name = ""
	}
	(*v.headers)[name] = append((*v.headers)[name], strings.TrimSpace(content))
	return nil
}

// String implements pflag.Value.
func (v *headersValue) String() string { return "" }

// Type implements pflag.Value.
func (v *headersValue) Type() string { return "header" }
