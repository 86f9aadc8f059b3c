package daemon

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

// Kubernetes is the version whose behavior we implement, for --version and the Node.
const Kubernetes = "v1.36.3"

// OldestEngine is the oldest supported release of Docker.
const OldestEngine = "17.06"

// Version and Commit are winkube's; the build sets them with -ldflags -X. If Commit is empty, the Go build record has it.
var (
	Version = "0.1.0-dev"
	Commit  = ""
)

// logFileSize is in megabytes. klog's default of 1800 is a tenth of a small system drive, and klog would discard the old log.
const logFileSize = "100"

// AddFlags adds the flags that both binaries share: those of klog, --log-flush-frequency, --logging-format, --version and, on Windows,
// --windows-service. fs then accepts "_" for "-" in the name of any flag, as in old command lines.
func AddFlags(fs *pflag.FlagSet) {
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	logs := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(logs)
	size := logs.Lookup("log_file_max_size")
	size.DefValue, size.Usage = logFileSize, "size, in megabytes, at which the log file is rotated; 0: never"
	_ = size.Value.Set(logFileSize) // a valid number
	fs.AddGoFlagSet(logs)
	fs.Int("log-file-max-files", 5, "number of files to keep of --log-file, including the current one")
	fs.Duration("log-flush-frequency", 5*time.Second, "longest time between two writes of buffered log lines to a log file")
	fs.String("logging-format", "text", "format of the log: text, or json with one object per line")
	fs.Var(new(versionValue), "version", "print the Kubernetes version and exit; full: also the version, commit and build of winkube, and the engines that it supports; raw: the same without engines")
	fs.Lookup("version").NoOptDefVal = "true"
	addServiceFlag(fs)
}

// PrintVersion prints the version if --version is set, and says whether it did; the caller then exits successfully.
func PrintVersion(w io.Writer, fs *pflag.FlagSet) bool {
	f := fs.Lookup("version")
	if f == nil || f.Value.String() == "false" {
		return false
	}
	fmt.Fprintln(w, "Kubernetes", Kubernetes)
	if f.Value.String() != "true" {
		fmt.Fprintf(w, "winkube %s\ncommit %s\n%s %s\n", Version, commit(), runtime.Version(), platform())
	}
	if f.Value.String() == "full" {
		fmt.Fprintf(w, "engine Docker %s or later\n", OldestEngine)
	}
	return true
}

// UserAgent is the program's user agent for the API server, in the format of upstream's binaries.
func UserAgent(component string) string {
	return fmt.Sprintf("%s/%s (%s) winkube/%s", component, Kubernetes, platform(), Version)
}

// startLogging configures klog from the flags. A given log file or directory takes effect even without --logtostderr=false; otherwise that flag's
// default would leave it empty.
func startLogging(fs *pflag.FlagSet) error {
	format := fs.Lookup("logging-format")
	if format != nil && format.Value.String() != "text" && format.Value.String() != "json" {
		return fmt.Errorf("--logging-format: %q: want text or json", format.Value)
	}
	if (fs.Changed("log-file") || fs.Changed("log-dir")) && !fs.Changed("logtostderr") {
		if err := fs.Set("logtostderr", "false"); err != nil {
			return fmt.Errorf("cannot log to a file: %w", err)
		}
	}
	if every, err := fs.GetDuration("log-flush-frequency"); err == nil {
		if every <= 0 {
			return fmt.Errorf("--log-flush-frequency: %s: must be longer than 0", every)
		}
		klog.StartFlushDaemon(every)
	}
	for _, name := range []string{"log-dir", "log-file"} {
		if err := checkLogPath(fs, name); err != nil {
			return err
		}
	}
	out, err := rotatedLog(fs)
	switch {
	case err != nil:
		return err
	case format != nil && format.Value.String() == "json":
		if fs.Changed("log-dir") {
			return fmt.Errorf("--log-dir=%s: want --log-file with --logging-format=json", fs.Lookup("log-dir").Value)
		}
		if out == nil {
			out = os.Stderr
		}
		logJSON(out)
	case out != nil:
		klog.SetOutput(out) // with --log-file klog writes each line once, regardless of its severity
	}
	return nil
}

// rotatedLog writes to --log-file; nil without that flag.
func rotatedLog(fs *pflag.FlagSet) (io.Writer, error) {
	path, keep := fs.Lookup("log-file"), fs.Lookup("log-file-max-files")
	if path == nil || keep == nil || path.Value.String() == "" {
		return nil, nil
	}
	files, err := fs.GetInt("log-file-max-files")
	if err != nil || files < 1 {
		return nil, fmt.Errorf("--log-file-max-files=%s: want at least 1", keep.Value)
	}
	size, err := strconv.ParseInt(fs.Lookup("log-file-max-size").Value.String(), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("--log-file-max-size=%s: want a number of megabytes", fs.Lookup("log-file-max-size").Value)
	}
	return &rotated{path: path.Value.String(), limit: size << 20, keep: files}, nil
}

// checkLogPath tests whether klog can create its file: klog would end the program later if it cannot.
func checkLogPath(fs *pflag.FlagSet, name string) error {
	f := fs.Lookup(name)
	if f == nil || f.Value.String() == "" {
		return nil
	}
	dir := f.Value.String()
	if name == "log-file" {
		dir = filepath.Dir(dir)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("--%s: %q: %w", name, f.Value, err)
	}
	return nil
}

// platform is the operating system and processor as upstream prints them. It reads the binary's build record, so that no code can make decisions by
// it.
func platform() string {
	os, arch := setting("GOOS"), setting("GOARCH")
	return os + "/" + arch
}

func commit() string {
	if Commit != "" {
		return Commit
	}
	revision := setting("vcs.revision")
	if setting("vcs.modified") == "true" {
		revision += "-dirty"
	}
	return revision
}

// setting returns an entry of the build record, or "unknown".
func setting(key string) string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == key {
				return s.Value
			}
		}
	}
	return "unknown"
}

// versionValue is the value of --version: false, true, full or raw.
type versionValue string

func (v *versionValue) Set(s string) error {
	switch s {
	case "true", "false", "full", "raw":
		*v = versionValue(s)
		return nil
	}
	return fmt.Errorf("must be true, false, full or raw")
}

func (v *versionValue) String() string {
	if *v == "" {
		return "false"
	}
	return string(*v)
}

func (v *versionValue) Type() string { return "version" }
