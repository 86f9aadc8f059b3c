package daemon

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Reference returns the page of a program's flags in Markdown: every flag that has an effect, with its default and the equivalent field of the
// configuration file; then the flags that are accepted and ignored, with the reason. It is pure.
func Reference(title, kind string, fs *pflag.FlagSet, bindings []Binding) string {
	fields := map[string]string{}
	for _, b := range bindings {
		fields[b.Flag] = strings.TrimSpace(fields[b.Flag] + " `" + b.Path + "`")
	}
	var act, retired []string
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	all.AddFlagSet(fs)
	if all.Lookup("windows-service") == nil { // both systems share one page
		addWindowsFlags(all)
	}
	all.VisitAll(func(f *pflag.Flag) {
		cell := func(text string) string {
			return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", "\\|")
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
	return fmt.Sprintf("# Flags of %s\n\nMade from the program's own table; `go test ./cmd/... -run TestReference -update` updates it. The field is that of %s; flags win over the file.\n\n"+
		"| flag | default | field | meaning |\n| --- | --- | --- | --- |\n%s\n\n## Accepted, and of no effect\n\n| flag | why |\n| --- | --- |\n%s\n",
		title, kind, strings.Join(act, "\n"), strings.Join(retired, "\n"))
}

// addWindowsFlags adds the Windows-only flags.
func addWindowsFlags(fs *pflag.FlagSet) {
	fs.Bool("windows-service", false, "on Windows: run as a service, started and stopped by the service manager")
	fs.String("windows-priorityclass", "NORMAL_PRIORITY_CLASS", "on Windows: `class` of this process with the scheduler, as ABOVE_NORMAL_PRIORITY_CLASS")
}
