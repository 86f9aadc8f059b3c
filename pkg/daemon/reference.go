package daemon

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Reference returns the page of a program's flags in Markdown: every flag that has an effect, with its default and the equivalent field of the
// configuration file; then the flags that are accepted and ignored, and those that are refused, with the reason. It is pure.
func Reference(title, kind string, fs *pflag.FlagSet, bindings []Binding) string {
	fields := map[string]string{}
	for _, b := range bindings {
		fields[b.Flag] = strings.TrimSpace(fields[b.Flag] + " `" + b.Path + "`")
	}
	var act, retired, refuse []string
	bothSystems(fs).VisitAll(func(f *pflag.Flag) {
		if why := f.Annotations[refused]; why != nil {
			refuse = append(refuse, fmt.Sprintf("| `--%s` | %s | %s |", f.Name, cell(why[0]), cell(why[1])))
			return
		}
		if f.Deprecated != "" {
			retired = append(retired, fmt.Sprintf("| `--%s` | %s |", f.Name, cell(f.Deprecated)))
			return
		}
		_, usage := pflag.UnquoteUsage(f)
		standard := ""
		if f.DefValue != "" && f.DefValue != "[]" && f.DefValue != "false" {
			standard = "`" + cell(f.DefValue) + "`"
		}
		act = append(act, fmt.Sprintf("| `--%s` | %s | %s | %s |", f.Name, standard, fields[f.Name], cell(usage)))
	})
	slices.Sort(act)
	slices.Sort(retired)
	slices.Sort(refuse)
	return fmt.Sprintf("# Flags of %s\n\nMade from the program's own table; `go test ./cmd/... -run TestReference -update` updates it. The field is that of %s; flags win over the file.\n\n"+
		"| flag | default | field | meaning |\n| --- | --- | --- | --- |\n%s\n\n## Accepted, and of no effect\n\n| flag | why |\n| --- | --- |\n%s\n\n"+
		"## Refused\n\nThese promise something that is not there. Other values than the wanted one are errors.\n\n| flag | want | because |\n| --- | --- | --- |\n%s\n",
		title, kind, strings.Join(act, "\n"), strings.Join(retired, "\n"), strings.Join(refuse, "\n"))
}

// cell formats text for a cell of a table in Markdown.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", "\\|")
}

// bothSystems returns the flags of fs and those that only Windows has.
func bothSystems(fs *pflag.FlagSet) *pflag.FlagSet {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	all.SetNormalizeFunc(fs.GetNormalizeFunc())
	all.AddFlagSet(fs)
	if all.Lookup("windows-service") == nil {
		addWindowsFlags(all)
	}
	return all
}

// addWindowsFlags adds the Windows-only flags.
func addWindowsFlags(fs *pflag.FlagSet) {
	fs.Bool("windows-service", false, "on Windows: run as a service, started and stopped by the service manager")
	fs.String("windows-priorityclass", "NORMAL_PRIORITY_CLASS", "on Windows: `class` of this process with the scheduler, as ABOVE_NORMAL_PRIORITY_CLASS")
}

// Comparison is what becomes of the settings of upstream's program.
type Comparison struct {
	Program, Kind string // upstream's names of the program and of its configuration
	Upstream      string // upstream's flags, one line each: the name, and the default if there is one
	Flags         *pflag.FlagSet
	Foreign       []Foreign
	Bindings      []Binding
	FieldsOnly    map[string]string // fields that have an effect and no flag, with what they do
	Content       any               // pointer to an empty configuration
}

const comparisonPage = "# Settings of upstream's %[1]s\n\nWhat becomes of each flag of upstream's %[1]s %[2]s and of each field of its %[3]s.\nMade from the program's own tables; `go test ./cmd/... -run TestUpstream -update` updates it.\n\n" +
	"- **works**: it has an effect.\n- **no effect**: accepted. A log line says why, unless the value asks for what happens anyway.\n" +
	"- **refused**: it promises something that is not there. The program ends with an error that says what it wants instead.\n\n"

// Page returns the page with the class of each flag and field in Markdown. err lists those that have no class or several, and foreign flags whose
// default is refused. It is pure.
func (c Comparison) Page() (page string, err error) {
	var b strings.Builder
	fmt.Fprintf(&b, comparisonPage, c.Program, Kubernetes, c.Kind)
	fmt.Fprint(&b, "## Flags\n\n| flag | here | |\n| --- | --- | --- |\n")
	flags := c.flags()
	fmt.Fprintf(&b, "%s\n\n## Fields\n\n| field | here | |\n| --- | --- | --- |\n", strings.Join(flags.rows, "\n"))
	fields := c.fields()
	fmt.Fprintln(&b, strings.Join(fields.rows, "\n"))
	return b.String(), errors.Join(append(flags.errs, fields.errs...)...)
}

type classes struct {
	rows []string
	errs []error
}

func (c *classes) add(name, class, what string) {
	c.rows = append(c.rows, fmt.Sprintf("| `%s` | %s | %s |", name, class, cell(what)))
}

func (c *classes) problem(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf(format, args...))
}

// foreign adds the row of a setting that this program does not have.
func (c *classes) foreign(name string, f Foreign) {
	if !f.Refuses() {
		c.add(name, "no effect", f.Why)
		return
	}
	c.add(name, "refused", fmt.Sprintf("want %s: %s", f.Want, f.Why))
}

func (c Comparison) flags() *classes {
	out, all, foreign := &classes{}, bothSystems(c.Flags), map[string]Foreign{}
	for _, f := range c.Foreign {
		if _, twice := foreign[f.Flag]; f.Flag != "" && twice {
			out.problem("--%s is twice in the table", f.Flag)
		}
		foreign[f.Flag] = f
	}
	for line := range strings.Lines(c.Upstream) {
		name, standard, _ := strings.Cut(strings.TrimSpace(line), " ")
		name = strings.ReplaceAll(name, "_", "-")
		flag, f := all.Lookup(name), foreign[name]
		switch _, placeholder := flagValue(flag).(*foreignValue); {
		case flag == nil:
			out.problem("--%s is unknown here", name)
		case placeholder:
			if err := f.refusal(standard); err != nil {
				out.problem("--%s=%s, upstream's default, is refused: %w", name, standard, err)
			}
			out.foreign("--"+name, f)
		case f.Flag != "":
			out.problem("--%s works, and is in the table of settings that do not", name)
		default:
			_, usage := pflag.UnquoteUsage(flag)
			out.add("--"+name, "works", usage)
		}
	}
	slices.Sort(out.rows)
	return out
}

func flagValue(f *pflag.Flag) pflag.Value {
	if f == nil {
		return nil
	}
	return f.Value
}

func (c Comparison) fields() *classes {
	out := &classes{}
	known := Fields(c.Content)
	for _, path := range known {
		classes := 0
		for _, b := range c.Bindings {
			if b.Path == path {
				classes++
				out.add(path, "works", "the same as `--"+b.Flag+"`")
			}
		}
		if what, ok := c.FieldsOnly[path]; ok {
			classes++
			out.add(path, "works", what)
		}
		for _, f := range c.Foreign {
			if f.Field == path || f.Field != "" && strings.HasPrefix(path, f.Field+".") {
				classes++
				out.foreign(path, f)
			}
		}
		if classes != 1 && path != "apiVersion" && path != "kind" {
			out.problem("%s has %d classes, want 1", path, classes)
		}
	}
	for _, f := range c.Foreign {
		if f.Field != "" && !slices.ContainsFunc(known, func(path string) bool { return path == f.Field || strings.HasPrefix(path, f.Field+".") }) {
			out.problem("%s is no field of %s", f.Field, c.Kind)
		}
	}
	return out
}
