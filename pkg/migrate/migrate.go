// Package migrate reads the configuration of another kubelet, and of cri-dockerd, and prints it for this one:
//
//	command lines of other programs, their configuration files --Translate--> Migration --Text--> a configuration file with comments
package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/winkube/winkube/pkg/daemon"
)

// Ours is what this kubelet has.
type Ours struct {
	Flags   *pflag.FlagSet // all of its flags, including those of Foreign; values are set to check them
	Foreign []daemon.Foreign
	// Read reads a configuration file and the drop-ins of a directory, each of which may be "".
	Read          func(file, dir string) (read *daemon.ConfigFile, content any, err error)
	Version, Kind string // of the configuration file
}

// Program is a program of others on this host.
type Program struct {
	Name string // kubelet or cri-dockerd
	From string // where Args are from
	Args []string
}

// translated are flags of others that have another name here.
var translated = map[string]string{"pod-sandbox-image": "pod-infra-container-image", "docker": "docker-endpoint", "non-masquerade-cidr": "non-masquerade-cidrs"}

// Migration is another kubelet's configuration as this one takes it.
type Migration struct {
	Sources []string
	Flags   []string // without --config
	Config  map[string]any
	Left    []LeftOut
}

// LeftOut is a setting that is not taken over.
type LeftOut struct {
	What, Value, Where, Why string
	Refused                 bool // it asks for something that is not there
}

// Programs is the kubelet with the flags args or, without any, the running kubelet and cri-dockerd of others below proc (proc(5)). Those in another
// network namespace are of another node: nodes of kind are containers of this host. Without a kubelet it returns an error that says what to do.
func Programs(proc string, args []string) ([]Program, error) {
	if len(args) > 0 {
		return []Program{{"kubelet", "the command line", args}}, nil
	}
	own, _ := os.Executable()
	network, _ := os.Readlink(filepath.Join(proc, "self", "ns", "net"))
	lines, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "cmdline"))
	slices.Sort(lines)
	var out []Program
	for _, line := range lines {
		text, err := os.ReadFile(line)
		argv := strings.Split(strings.TrimRight(string(text), "\x00"), "\x00")
		name := path.Base(argv[0])
		if err != nil || name != "kubelet" && name != "cri-dockerd" {
			continue
		}
		pid := filepath.Base(filepath.Dir(line))
		if program, err := os.Readlink(filepath.Join(proc, pid, "exe")); err == nil && program == own {
			continue
		}
		if theirs, err := os.Readlink(filepath.Join(proc, pid, "ns", "net")); err == nil && theirs != network {
			continue
		}
		out = append(out, Program{name, "process " + pid, argv[1:]})
	}
	if !slices.ContainsFunc(out, func(p Program) bool { return p.Name == "kubelet" }) {
		return nil, errors.New("--migrate: no other kubelet runs here: start it, or give its flags: kubelet doctor --migrate -- --config=... (on Windows always)")
	}
	return out, nil
}

// Translate divides the settings of programs into those that ours has and others.
func Translate(programs []Program, ours Ours) (*Migration, error) {
	m := &Migration{Config: map[string]any{}}
	plugin, remote, mode := "", false, false
	var file, dir string
	for _, p := range programs {
		m.Sources = append(m.Sources, fmt.Sprintf("%s (%s)", p.Name, p.From))
		if p.Name == "cri-dockerd" {
			plugin = cmp.Or(plugin, "cni") // its default
		}
		for _, s := range settingsIn(p.Args, ours.Flags) {
			switch s.name {
			case "config":
				file = s.value
				continue
			case "config-dir":
				dir = s.value
				continue
			case "network-plugin":
				plugin = s.value
			case "network-mode":
				mode = true
			case "container-runtime-endpoint":
				remote = remote || p.Name == "kubelet"
			}
			m.take(s, p, ours)
		}
	}
	read, content, err := ours.Read(file, dir)
	if err != nil {
		return nil, err
	}
	if err := m.merge(read, file); err != nil {
		return nil, err
	}
	_, endpoint := m.Config["containerRuntimeEndpoint"]
	if !mode && (plugin == "cni" || plugin == "" && (remote || endpoint)) {
		m.Flags = append(m.Flags, "--network-mode=cni")
	}
	for _, asking := range read.Asks(ours.Foreign, content) {
		remove(m.Config, asking.Path)
		m.Left = append(m.Left, LeftOut{asking.Path, asking.Value, asking.Place.String(), asking.Why, asking.Refused})
	}
	for _, name := range []string{"containerRuntimeEndpoint", "imageServiceEndpoint", "cgroupDriver"} { // accepted, and of no use in the new file
		delete(m.Config, name)
	}
	m.Config["apiVersion"], m.Config["kind"] = ours.Version, ours.Kind
	return m, nil
}

// take decides about one flag.
func (m *Migration) take(s setting, from Program, ours Ours) {
	out := LeftOut{What: "--" + s.name, Value: s.value, Where: fmt.Sprintf("%s (%s)", from.Name, from.From)}
	flag := ours.Flags.Lookup(cmp.Or(translated[s.name], s.name))
	others := slices.Concat(ours.Foreign, ofDockershim)
	i := slices.IndexFunc(others, func(f daemon.Foreign) bool { return f.Flag == s.name })
	switch {
	case translated[s.name] != "":
		m.add(flag, s.value)
		return
	case s.name == "network-plugin" && (s.value == "cni" || s.value == ""): // it decides --network-mode
		return
	case i >= 0:
		if out.Why, out.Refused = others[i].Verdict(s.value); out.Why == "" {
			return
		}
	case flag == nil:
		out.Why = "it has no effect: this kubelet has no such flag"
		if from.Name == "kubelet" { // what cri-dockerd alone has is done otherwise here
			out.Why, out.Refused = "refused: this kubelet has no such flag", true
		}
	default:
		if err := flag.Value.Set(s.value); err != nil {
			out.Why, out.Refused = "refused: "+err.Error(), true
			break
		}
		m.add(flag, s.value)
		return
	}
	m.Left = append(m.Left, out)
}

// add adds a flag. The last value counts, but for lists.
func (m *Migration) add(flag *pflag.Flag, value string) {
	prefix := "--" + flag.Name + "="
	if slices.Contains([]string{"string", "bool", "duration", "int32", "int64"}, flag.Value.Type()) {
		m.Flags = slices.DeleteFunc(m.Flags, func(have string) bool { return strings.HasPrefix(have, prefix) })
	}
	m.Flags = append(m.Flags, prefix+value)
}

// setting is one flag on a command line.
type setting struct{ name, value string }

// settingsIn splits a command line. A flag that flags does not have takes the next word as its value, unless that is a flag.
func settingsIn(args []string, flags *pflag.FlagSet) (out []setting) {
	for i := 0; i < len(args); i++ {
		word := args[i]
		if !strings.HasPrefix(word, "-") || word == "--" {
			continue
		}
		name, value, whole := strings.Cut(strings.TrimLeft(word, "-"), "=")
		name = strings.ReplaceAll(name, "_", "-")
		flag := flags.Lookup(name)
		switch {
		case whole:
		case flag != nil && flag.NoOptDefVal != "":
			value = flag.NoOptDefVal
		case i+1 < len(args) && (flag != nil || !strings.HasPrefix(args[i+1], "-")):
			i++
			value = args[i]
		default:
			value = "true"
		}
		out = append(out, setting{name, value})
	}
	return out
}

// merge merges the files that were read, as they stand: first the one of --config, then drop-ins by their names.
func (m *Migration) merge(read *daemon.ConfigFile, first string) error {
	var files []string
	for _, place := range read.Places {
		if !slices.Contains(files, place.File) {
			files = append(files, place.File)
		}
	}
	slices.Sort(files)
	if i := slices.Index(files, first); i >= 0 {
		files = slices.Insert(slices.Delete(files, i, i+1), 0, first)
	}
	for _, name := range files {
		m.Sources = append(m.Sources, name)
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		var fields map[string]any
		if err := yaml.Unmarshal(text, &fields); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		merge(m.Config, fields)
	}
	return nil
}

// merge adds fields to a configuration as --config-dir does: maps are merged, other values replaced.
func merge(into, fields map[string]any) {
	for name, value := range fields {
		old, was := into[name].(map[string]any)
		if more, is := value.(map[string]any); was && is {
			merge(old, more)
			continue
		}
		into[name] = value
	}
}

// remove removes the field at a path, and maps that become empty.
func remove(config map[string]any, at string) {
	name, rest, nested := strings.Cut(at, ".")
	if inner, ok := config[name].(map[string]any); ok && nested {
		if remove(inner, rest); len(inner) > 0 {
			return
		}
	}
	delete(config, name)
}

// Print prints Text, and returns an error that counts the settings left out that ask for something that is not there.
func (m *Migration) Print(out io.Writer, wrong error) error {
	text, err := m.Text(wrong)
	if err != nil {
		return err
	}
	fmt.Fprint(out, text)
	refused := 0
	for _, l := range m.Left {
		if l.Refused {
			refused++
		}
	}
	if refused > 0 {
		return fmt.Errorf("settings that this kubelet refuses: %d; they are left out, with what would be right", refused)
	}
	return nil
}

// Write writes the new configuration file without comments.
func (m *Migration) Write(file string) error {
	text, err := yaml.Marshal(m.Config)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}

// Text is the new configuration file. wrong is what this kubelet still refuses of it, or nil.
func (m *Migration) Text(wrong error) (string, error) {
	content, err := yaml.Marshal(m.Config)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Made by `kubelet doctor --migrate` from %s.\n#\n# Run the kubelet with this file and these flags:\n#\n#     kubelet --config=FILE", strings.Join(m.Sources, ", "))
	for _, flag := range m.Flags {
		name, value, _ := strings.Cut(flag, "=")
		if value != "" && strings.Trim(value, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:,=@%+") != "" {
			value = "'" + strings.ReplaceAll(value, "'", `'\''`) + "'" // a shell expands nothing in it
		}
		fmt.Fprintf(&b, " \\\n#         %s=%s", name, value)
	}
	b.WriteString("\n#\n")
	if len(m.Left) > 0 {
		b.WriteString("# Left out:\n#\n")
		table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, l := range m.Left {
			fmt.Fprintf(table, "#     %s\t%s\t%s\t%s\n", l.What, l.Value, l.Where, l.Why)
		}
		if err := table.Flush(); err != nil {
			return "", err
		}
		b.WriteString("#\n")
	}
	if wrong != nil {
		fmt.Fprintf(&b, "# Still to correct: %s\n", strings.ReplaceAll(wrong.Error(), "\n", " "))
	} else {
		b.WriteString("# This kubelet accepts it on this host.\n")
	}
	return b.String() + string(content), nil
}
