package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"

	programs "github.com/winkube/winkube/pkg/command"
)

// NodeLogs serves the host's logs on /logs/: the files below Dir, and with Query those of services (KEP-2258), from the journal, Windows' event log,
// or else files named after the service.
type NodeLogs struct {
	Dir    string // /var/log
	OS     string // linux or windows
	Query  bool   // enableSystemLogQuery
	Runner programs.Runner

	fileTimeout time.Duration // 0: logFileTimeout
}

// Limits of a query: upstream's, plus a limit of lines if the query has none.
const (
	maxLogLines     = 100_000
	maxServices     = 4
	maxServiceName  = 256
	logQueryTimeout = 30 * time.Second
)

// logQuery contains the parameters of /logs/?query=...
type logQuery struct {
	services     []string
	file         string
	since, until time.Time // zero: not given
	lines        int       // -1: not given
	boot         *int
	pattern      *regexp.Regexp // nil: not given
}

// bounded says that the query selects a part of a log, which files do not support.
func (q logQuery) bounded() bool {
	return !q.since.IsZero() || !q.until.IsZero() || q.lines >= 0 || q.boot != nil || q.pattern != nil
}

// serviceName matches names that are safe in a program's arguments.
var serviceName = regexp.MustCompile(`^[a-zA-Z0-9_.:@][a-zA-Z0-9\-_.:@]*$`)

// parseLogQuery parses the parameters. The error names the invalid one.
func parseLogQuery(values url.Values, system string) (q logQuery, err error) {
	q.lines = -1
	for _, name := range values["query"] {
		switch {
		case strings.ContainsAny(name, `/\`) && q.file == "" && len(values["query"]) == 1:
			q.file = name
		case strings.ContainsAny(name, `/\`):
			return q, fmt.Errorf("query: %q: want one file and nothing else, or services", name)
		case len(name) > maxServiceName || !serviceName.MatchString(name):
			return q, fmt.Errorf("query: %q: want the name of a service of at most %d letters, digits and -_.:@, or a file with / in its name", name, maxServiceName)
		default:
			q.services = append(q.services, name)
		}
	}
	if len(q.services) > maxServices || q.file == "" && len(q.services) == 0 {
		return q, fmt.Errorf("query: %d services: want 1 to %d, or one file", len(q.services), maxServices)
	}
	for name, at := range map[string]*time.Time{"sinceTime": &q.since, "untilTime": &q.until} {
		if text := values.Get(name); text != "" {
			if *at, err = time.Parse(time.RFC3339, text); err != nil {
				return q, fmt.Errorf("%s: %q: want a time such as 2026-01-02T15:04:05Z", name, text)
			}
		}
	}
	if !q.until.IsZero() && q.since.After(q.until) {
		return q, fmt.Errorf("untilTime: %s: want a time after sinceTime", values.Get("untilTime"))
	}
	if text := values.Get("tailLines"); text != "" {
		if q.lines, err = strconv.Atoi(text); err != nil || q.lines < 0 || q.lines > maxLogLines {
			return q, fmt.Errorf("tailLines: %q: want a number from 0 to %d", text, maxLogLines)
		}
	}
	if text := values.Get("boot"); text != "" {
		boot, err := strconv.Atoi(text)
		if err != nil || boot > 0 || system == "windows" {
			return q, fmt.Errorf("boot: %q: want 0 for this boot, -1 for the one before and so on; not on Windows", text)
		}
		q.boot = &boot
	}
	if text := values.Get("pattern"); text != "" {
		if q.pattern, err = regexp.Compile(text); err != nil {
			return q, fmt.Errorf("pattern: %w", err)
		}
	}
	if q.file != "" && q.bounded() {
		return q, errors.New("query: a file is given as a whole: want no other parameter with it")
	}
	return q, nil
}

// ServeHTTP implements http.Handler.
func (n NodeLogs) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	values := r.URL.Query()
	if _, asked := values["query"]; asked || len(values) > 0 && n.Query {
		n.serveQuery(w, r, values)
		return
	}
	n.serveFile(w, r)
}

func (n NodeLogs) serveQuery(w http.ResponseWriter, r *http.Request, values url.Values) {
	if !n.Query {
		plain(w, http.StatusForbidden, "queries of logs are off: want enableSystemLogQuery: true in the kubelet's configuration\n")
		return
	}
	q, err := parseLogQuery(values, n.OS)
	if err != nil {
		plain(w, http.StatusBadRequest, err.Error()+"\n")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), logQueryTimeout)
	defer cancel()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if q.file != "" {
		n.copyFile(ctx, w, q.file)
		return
	}
	var native, files []string
	for _, service := range q.services {
		if n.known(ctx, service) {
			native = append(native, service)
		} else {
			files = append(files, service)
		}
	}
	if len(native) > 0 {
		n.copyServices(ctx, w, q, native)
	}
	if len(files) > 0 && q.bounded() {
		fmt.Fprintf(w, "\noptions present and query resolved to log files for %v\ntry without specifying options\n", files)
		return
	}
	for _, service := range files {
		n.copyFile(ctx, w, service, service+".log", service+"/"+service+".log")
	}
}

// known says whether the system's log knows a service.
func (n NodeLogs) known(ctx context.Context, service string) bool {
	if n.OS == "windows" {
		_, err := n.Runner.Run(ctx, nil, "wevtutil", "gp", service)
		return err == nil
	}
	units, err := n.Runner.Run(ctx, nil, "journalctl", "--field", "_SYSTEMD_UNIT")
	return err == nil && slices.Contains(strings.Fields(string(units)), service+".service")
}

func (n NodeLogs) copyServices(ctx context.Context, w io.Writer, q logQuery, services []string) {
	name, args := "journalctl", journalArgs(q, services)
	if n.OS == "windows" {
		name, args = "wevtutil", eventArgs(q, services)
	}
	out, err := n.Runner.Run(ctx, nil, name, args...)
	if n.OS == "windows" {
		out = oldestFirst(out, q.pattern)
	}
	_, _ = w.Write(out)
	var exit *programs.ExitError
	if err != nil && !(errors.As(err, &exit) && len(out) == 0) { // journalctl exits with 1 when a pattern matches nothing
		klog.ErrorS(err, "Cannot read the logs of services", "services", services)
		fmt.Fprintf(w, "\nerror: the log of %v is not available\n", services)
	}
}

const (
	journalTime = "2006-01-02 15:04:05"
	eventTime   = "2006-01-02T15:04:05.000Z"
)

// journalArgs are the arguments of journalctl(1).
func journalArgs(q logQuery, services []string) []string {
	args := []string{"--utc", "--no-pager", "--output=short-precise"}
	if !q.since.IsZero() {
		args = append(args, "--since="+q.since.UTC().Format(journalTime)+" UTC")
	}
	if !q.until.IsZero() {
		args = append(args, "--until="+q.until.UTC().Format(journalTime)+" UTC")
	}
	args = append(args, fmt.Sprintf("--lines=%d", q.most()))
	for _, service := range services {
		args = append(args, "--unit="+service)
	}
	if q.pattern != nil {
		args = append(args, "--grep="+q.pattern.String())
	}
	if q.boot != nil {
		args = append(args, fmt.Sprintf("--boot=%d", *q.boot))
	}
	return args
}

func (q logQuery) most() int {
	if q.lines >= 0 {
		return q.lines
	}
	return maxLogLines
}

// eventArgs are the arguments of wevtutil.exe for the newest events of the services in the log Application, newest first. The caller applies the
// pattern; lines are events.
func eventArgs(q logQuery, services []string) []string {
	var providers, times []string
	for _, service := range services {
		providers = append(providers, "@Name='"+service+"'")
	}
	if !q.since.IsZero() {
		times = append(times, "@SystemTime>='"+q.since.UTC().Format(eventTime)+"'")
	}
	if !q.until.IsZero() {
		times = append(times, "@SystemTime<='"+q.until.UTC().Format(eventTime)+"'")
	}
	filter := "Provider[" + strings.Join(providers, " or ") + "]"
	if len(times) > 0 {
		filter += " and TimeCreated[" + strings.Join(times, " and ") + "]"
	}
	return []string{"qe", "Application", "/q:*[System[" + filter + "]]", fmt.Sprintf("/c:%d", q.most()), "/rd:true", "/f:text"}
}

var eventBegin = regexp.MustCompile(`(?m)^Event\[`)

// oldestFirst reverses the events in wevtutil's text, and drops those that the pattern does not match.
func oldestFirst(text []byte, pattern *regexp.Regexp) []byte {
	var events [][]byte
	begins := eventBegin.FindAllIndex(text, -1)
	for i, begin := range begins {
		end := len(text)
		if i+1 < len(begins) {
			end = begins[i+1][0]
		}
		if event := text[begin[0]:end]; pattern == nil || pattern.Match(event) {
			events = append(events, event)
		}
	}
	slices.Reverse(events)
	return bytes.Join(events, nil)
}
