package daemon

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func flags(t *testing.T, args ...string) (*pflag.FlagSet, error) {
	t.Helper()
	t.Cleanup(klog.CaptureState().Restore) // klog's flags are the process's: the next test would make a log directory again that is gone
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	fs.SetOutput(&bytes.Buffer{})
	AddFlags(fs)
	return fs, fs.Parse(args)
}

func TestVersion(t *testing.T) {
	for args, want := range map[string]string{
		"":                "",
		"--version=false": "",
		"--version":       "Kubernetes v1.36.3\n",
		"--version=true":  "Kubernetes v1.36.3\n",
	} {
		fs, err := flags(t, strings.Fields(args)...)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if printed := PrintVersion(&out, fs); printed != (want != "") || out.String() != want {
			t.Errorf("%q prints %q, want %q", args, &out, want)
		}
	}
	fs, err := flags(t, "--version=raw")
	var out bytes.Buffer
	if err != nil || !PrintVersion(&out, fs) || !strings.HasPrefix(out.String(), "Kubernetes v1.36.3\nwinkube "+Version+"\ncommit ") || strings.Count(out.String(), "\n") != 4 {
		t.Errorf("raw prints %q, %v", &out, err)
	}
	short := out.String()
	out.Reset()
	if fs, err = flags(t, "--version=full"); err != nil || !PrintVersion(&out, fs) || out.String() != short+"engine Docker "+OldestEngine+" or later\n" {
		t.Errorf("full prints %q, %v", &out, err)
	}
	if _, err := flags(t, "--version=x"); err == nil || !strings.Contains(err.Error(), "raw") {
		t.Errorf("--version=x: %v", err)
	}
}

func TestFlagsOfOldCommandLines(t *testing.T) {
	fs, err := flags(t, "-v", "2", "--v=3", "--vmodule=a=1", "--logtostderr", "--alsologtostderr=false", "--log_dir="+t.TempDir(), "--log-file=", "--stderrthreshold=ERROR",
		"--skip_headers", "--add-dir-header=false", "--log_flush_frequency=5s", "--logging-format=text")
	if err != nil {
		t.Fatal(err)
	}
	if v := fs.Lookup("v").Value.String(); v != "3" {
		t.Errorf("v is %s", v)
	}
	if _, err := flags(t, "--v=0"); err != nil {
		t.Error(err)
	}
}

func TestBadLoggingFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"--logging-format=xml":                   `--logging-format: "xml"`,
		"--log-flush-frequency=0s":               "--log-flush-frequency: 0s",
		"--logtostderr --log-dir=" + file + "/x": "--log-dir",
	} {
		fs, err := flags(t, strings.Fields(args)...)
		if err != nil {
			t.Fatal(err)
		}
		if err := startLogging(fs); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
}

func TestLogFileImpliesNotStderr(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	for args, want := range map[string]string{"": "true", "--log-file=" + dir + "/x.log": "false", "--logtostderr=true --log_dir=" + dir: "true"} {
		fs, err := flags(t, strings.Fields(args)...)
		if err != nil {
			t.Fatal(err)
		}
		err = startLogging(fs)
		got := fs.Lookup("logtostderr").Value.String()
		// The flags are klog's own, of the whole process.
		for name, value := range map[string]string{"logtostderr": "true", "log-file": "", "log-dir": ""} {
			if err := fs.Set(name, value); err != nil {
				t.Fatal(err)
			}
		}
		klog.StopFlushDaemon()
		if err != nil || got != want {
			t.Errorf("%q: logtostderr is %s, %v; want %s", args, got, err, want)
		}
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		t.Errorf("the directory of the log file was not made: %v", err)
	}
}

func TestUntil(t *testing.T) {
	failed := errors.New("it broke")
	for name, c := range map[string]struct {
		signals int
		run     func(ctx context.Context) error
		want    error
		exits   int
	}{
		"returns":            {0, func(context.Context) error { return nil }, nil, 0},
		"fails":              {0, func(context.Context) error { return failed }, failed, 0},
		"stops":              {1, func(ctx context.Context) error { <-ctx.Done(); return nil }, nil, 0},
		"stops with its ctx": {1, func(ctx context.Context) error { <-ctx.Done(); return fmt.Errorf("watch: %w", ctx.Err()) }, nil, 0},
		"fails to stop":      {1, func(ctx context.Context) error { <-ctx.Done(); return failed }, failed, 0},
		"hangs":              {2, func(context.Context) error { select {} }, nil, 1},
		"cancelled unasked":  {0, func(context.Context) error { return context.Canceled }, context.Canceled, 0},
	} {
		signals, exits := make(chan os.Signal, 2), 0
		for range c.signals {
			signals <- syscall.SIGTERM
		}
		err := until(signals, func() { exits++ }, c.run)
		if exits != c.exits || c.exits == 0 && !errors.Is(err, c.want) || c.want == nil && c.exits == 0 && err != nil {
			t.Errorf("%s: got %v and %d exits, want %v and %d", name, err, exits, c.want, c.exits)
		}
	}
}

func TestErrorsAreOneLine(t *testing.T) {
	var out bytes.Buffer
	err := errors.Join(errors.New("first\n  more "), errors.New("second"))
	if code := report(&out, err); code != 1 || out.String() != "first; more; second\n" {
		t.Errorf("exit code %d, %q", code, &out)
	}
	if code := report(&out, nil); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestUserAgent(t *testing.T) {
	if got := UserAgent("kubelet"); !strings.HasPrefix(got, "kubelet/v1.36.3 (") || strings.Contains(got, "unknown/") {
		t.Errorf("got %s", got)
	}
}
