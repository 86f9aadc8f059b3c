package dockertest

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/pkg/stdcopy"
)

// command is one exec.
type command struct {
	id      string
	box     *box
	options container.ExecOptions
	keys    []byte // that detach from a terminal
	process *process
	running bool
	code    int
	pid     int
}

// stop ends the command when its container does. The caller holds the engine's lock.
func (c *command) stop(code int) {
	if c.running {
		c.running, c.code = false, code
		c.process.finish()
		c.process.kill()
	}
}

func (e containerAPI) logs(w http.ResponseWriter, r *http.Request, b *box) {
	query := r.URL.Query()
	want := wanted{
		stdout: query.Get("stdout") == "1", stderr: query.Get("stderr") == "1", timestamps: query.Get("timestamps") == "1",
		follow: query.Get("follow") == "1", raw: b.config.Tty, since: since(query.Get("since")),
	}
	if !want.stdout && !want.stderr {
		refuse(w, http.StatusBadRequest, "Bad parameters: you must choose at least one stream")
		return
	}
	e.mu.Lock()
	runs, down := slices.Clone(b.past), e.down
	if b.process != nil {
		runs = append(runs, b.process)
	}
	e.mu.Unlock()
	w.Header().Set("Content-Type", "application/vnd.docker.raw-stream")
	w.WriteHeader(http.StatusOK)
	flush := func() { _ = http.NewResponseController(w).Flush() }
	flush()
	total := 0
	for _, run := range runs {
		entries, _, _ := run.from(0)
		total += len(entries)
	}
	skip := 0
	if tail, err := strconv.Atoi(query.Get("tail")); err == nil && tail >= 0 {
		skip = max(total-tail, 0)
	}
	for _, run := range runs {
		entries, _, _ := run.from(0)
		at := min(skip, len(entries))
		skip -= at
		if run.deliver(r.Context(), w, flush, at, want, down) != nil {
			return
		}
	}
}

// since parses seconds[.nanoseconds].
func since(text string) time.Time {
	seconds, fraction, _ := strings.Cut(text, ".")
	s, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return time.Time{}
	}
	n, _ := strconv.ParseInt((fraction + "000000000")[:9], 10, 64)
	return time.Unix(s, n)
}

// takeOver turns the request's connection into a raw stream.
func takeOver(w http.ResponseWriter) (net.Conn, io.Reader, error) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, err
	}
	_, err = io.WriteString(conn, "HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
	return conn, buffered, err
}

func (e containerAPI) attach(w http.ResponseWriter, r *http.Request, b *box) {
	query := r.URL.Query()
	e.mu.Lock()
	run, running, down := b.process, b.running, e.down
	takesInput := query.Get("stdin") == "1" && b.config.OpenStdin && !b.stdinTaken
	if takesInput && b.config.StdinOnce {
		b.stdinTaken = true
	}
	e.mu.Unlock()
	if !running {
		refuse(w, http.StatusConflict, "You cannot attach to a stopped container, start it first")
		return
	}
	conn, in, err := takeOver(w)
	if err != nil {
		return
	}
	defer conn.Close()
	entries, _, _ := run.from(0)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		to := io.Discard
		if takesInput {
			to = run.stdin
		}
		_, _ = io.Copy(to, in)
		if takesInput && b.config.StdinOnce {
			run.stdin.Close()
		}
	}()
	want := wanted{stdout: query.Get("stdout") == "1", stderr: query.Get("stderr") == "1", raw: b.config.Tty, follow: true}
	_ = run.deliver(nowhere, conn, func() {}, len(entries), want, down)
	conn.Close()
	<-gone
}

func (e containerAPI) createExec(w http.ResponseWriter, r *http.Request, b *box) {
	var options container.ExecOptions
	if err := json.NewDecoder(r.Body).Decode(&options); err != nil || len(options.Cmd) == 0 {
		refuse(w, http.StatusBadRequest, "No exec command specified")
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !b.running {
		refuse(w, http.StatusConflict, "Container %s is not running", b.id)
		return
	}
	keys, err := detachKeys(options.DetachKeys)
	if err != nil {
		refuse(w, http.StatusBadRequest, "Invalid detach keys (%s) provided", options.DetachKeys)
		return
	}
	c := &command{id: e.nextID(), box: b, options: options, keys: keys}
	e.execs[c.id] = c
	e.emit(b, events.Action("exec_create: "+strings.Join(options.Cmd, " ")))
	answer(w, http.StatusCreated, container.ExecCreateResponse{ID: c.id})
}

// detachKeys parses "ctrl-p,ctrl-q": characters, and control characters.
func detachKeys(text string) ([]byte, error) {
	var keys []byte
	if text == "" {
		return nil, nil
	}
	for key := range strings.SplitSeq(text, ",") {
		char := strings.TrimPrefix(key, "ctrl-")
		switch {
		case len(char) == 1 && char == key:
			keys = append(keys, char[0])
		case len(char) == 1 && (char[0] >= 'a' && char[0] <= 'z' || strings.Contains("@[\\]^_", char)):
			keys = append(keys, char[0]&0x1f)
		default:
			return nil, fmt.Errorf("unknown key %q", key)
		}
	}
	return keys, nil
}

func (e execAPI) exec(w http.ResponseWriter, r *http.Request, id, verb string) {
	e.mu.Lock()
	c := e.execs[id]
	e.mu.Unlock()
	if c == nil {
		refuse(w, http.StatusNotFound, "No such exec instance: %s", id)
		return
	}
	switch r.Method + " " + verb {
	case "POST start":
		var how container.ExecStartOptions
		body, err := io.ReadAll(r.Body) // the rest of the connection is the command's input
		if err == nil {
			err = json.Unmarshal(body, &how)
		}
		if err != nil {
			refuse(w, http.StatusBadRequest, "invalid request body: %v", err)
			return
		}
		e.startExec(w, c, how.Detach)
	case "GET json":
		e.mu.Lock()
		defer e.mu.Unlock()
		var code *int // nil until the command has ended
		if !c.running && (c.process != nil || c.code != 0) {
			code = &c.code
		}
		state := map[string]any{"ID": c.id, "ContainerID": c.box.id, "Running": c.running, "ExitCode": code, "DetachKeys": c.keys}
		if !older(e.opts.APIVersion, "1.25") {
			state["Pid"] = c.pid
		}
		answer(w, http.StatusOK, state)
	case "POST resize":
		e.mu.Lock()
		defer e.mu.Unlock()
		if c.process == nil {
			refuse(w, http.StatusInternalServerError, "exec %s has not started", c.id)
			return
		}
		resize(w, r, c.process)
	default:
		refuse(w, http.StatusNotFound, "page not found")
	}
}

// startExec starts a command and serves its streams until it ends; if detached, it has none.
func (e execAPI) startExec(w http.ResponseWriter, c *command, detached bool) {
	e.mu.Lock()
	if c.process != nil || !c.box.running {
		e.mu.Unlock()
		refuse(w, http.StatusConflict, "exec %s cannot be started", c.id)
		return
	}
	program := e.opts.Program(c.options.Cmd)
	if program != nil {
		e.serial++
		c.running, c.pid = true, 4_000_000+e.serial
		c.process = launch(e.clock, program, Process{Args: c.options.Cmd, Env: c.box.config.Env, TTY: c.options.Tty}, c.options.AttachStdin, func(code int) {
			e.mu.Lock()
			defer e.mu.Unlock()
			c.stop(code)
		})
		e.emit(c.box, events.Action("exec_start: "+strings.Join(c.options.Cmd, " ")))
	}
	run, down := c.process, e.down
	e.mu.Unlock()
	if detached && program != nil {
		w.WriteHeader(http.StatusOK)
		return
	}
	conn, in, err := takeOver(w)
	if err != nil {
		return
	}
	defer conn.Close()
	if program == nil {
		e.mu.Lock()
		c.code = 126
		e.mu.Unlock()
		_, _ = stdcopy.NewStdWriter(conn, stdcopy.Stdout).Write([]byte(notFound("exec", c.options.Cmd[0]) + "\r\n"))
		return
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		to := io.Discard
		if c.options.AttachStdin {
			to = run.stdin
		}
		_, _ = io.Copy(to, in)
		run.stdin.Close()
	}()
	want := wanted{stdout: c.options.AttachStdout, stderr: c.options.AttachStderr, raw: c.options.Tty, follow: true}
	_ = run.deliver(nowhere, conn, func() {}, 0, want, down)
	conn.Close()
	<-gone
}

func (e containerAPI) resize(w http.ResponseWriter, r *http.Request, b *box) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !b.running {
		refuse(w, http.StatusConflict, "Container %s is not running", b.id)
		return
	}
	resize(w, r, b.process)
}

func resize(w http.ResponseWriter, r *http.Request, run *process) {
	height, err1 := strconv.ParseUint(r.URL.Query().Get("h"), 10, 16)
	width, err2 := strconv.ParseUint(r.URL.Query().Get("w"), 10, 16)
	if err1 != nil || err2 != nil {
		refuse(w, http.StatusBadRequest, "invalid size")
		return
	}
	select {
	case run.resized <- [2]uint{uint(height), uint(width)}:
	default:
	}
	w.WriteHeader(http.StatusOK)
}
