package docker

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/versions"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilexec "k8s.io/client-go/util/exec"

	"github.com/winkube/winkube/pkg/docker/dockertest"
	"github.com/winkube/winkube/pkg/pod"
)

func testLogs(t *testing.T, r *rig) {
	p := r.pod("logs", []string{"both"}, []string{"both"})
	p.Spec.Containers[1].TTY = true
	ids := r.run(p)
	r.exited(p, "c0")
	r.exited(p, "c1")
	read := func(id string, options v1.PodLogOptions) (string, string) {
		out, errOut := dockertest.NewBuffer(), dockertest.NewBuffer()
		if err := r.Logs(t.Context(), id, &options, out, errOut); err != nil {
			t.Errorf("%+v: %v", options, err)
		}
		return out.String(), errOut.String()
	}
	n := func(n int64) *int64 { return &n }
	stream := func(s string) *string { return &s }
	hence, long := metav1.NewTime(time.Now().Add(time.Hour)), metav1.NewTime(time.Now().Add(-time.Hour))
	for _, test := range []struct {
		options     v1.PodLogOptions
		out, errOut string
	}{
		{v1.PodLogOptions{}, "to stdout\n", "to stderr\n"},
		{v1.PodLogOptions{Follow: true}, "to stdout\n", "to stderr\n"},
		{v1.PodLogOptions{Stream: stream(v1.LogStreamStdout)}, "to stdout\n", ""},
		{v1.PodLogOptions{Stream: stream(v1.LogStreamStderr)}, "", "to stderr\n"},
		{v1.PodLogOptions{Stream: stream(v1.LogStreamAll)}, "to stdout\n", "to stderr\n"},
		{v1.PodLogOptions{TailLines: n(0)}, "", ""},
		{v1.PodLogOptions{SinceTime: &hence}, "", ""},
		{v1.PodLogOptions{SinceTime: &long}, "to stdout\n", "to stderr\n"},
		{v1.PodLogOptions{SinceSeconds: n(600)}, "to stdout\n", "to stderr\n"},
		{v1.PodLogOptions{LimitBytes: n(4), Stream: stream(v1.LogStreamStdout)}, "to s", ""},
	} {
		if out, errOut := read(ids[0], test.options); out != test.out || errOut != test.errOut {
			t.Errorf("%+v: %q, %q", test.options, out, errOut)
		}
	}
	if out, errOut := read(ids[0], v1.PodLogOptions{TailLines: n(1)}); len(out)+len(errOut) != len("to stdout\n") {
		t.Errorf("last line: %q, %q", out, errOut)
	}
	if out, errOut := read(ids[1], v1.PodLogOptions{}); strings.ReplaceAll(out, "\r", "") != "to stdout\nto stderr\n" || errOut != "" {
		t.Errorf("terminal: %q, %q", out, errOut)
	}
	out, _ := read(ids[0], v1.PodLogOptions{Timestamps: true})
	at, rest, _ := strings.Cut(out, " ")
	if when, err := time.Parse(time.RFC3339Nano, at); err != nil || time.Since(when) > time.Hour || rest != "to stdout\n" {
		t.Errorf("with time: %q, %v", out, err)
	}
}

func testFollow(t *testing.T, r *rig) {
	p := r.pod("follow", []string{"pause", "one", "two"})
	id := r.run(p)[0]
	out := dockertest.NewBuffer()
	done := make(chan error, 1)
	go func() { done <- r.Logs(t.Context(), id, &v1.PodLogOptions{Follow: true}, out, nil) }()
	out.Await(t, "one\ntwo\n")
	r.apply(p, pod.Step{Action: pod.StopContainer, ID: id, Grace: 5 * time.Second})
	if err := <-done; err != nil || out.String() != "one\ntwo\nbye\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	p = r.pod("abandoned", []string{"pause", "one"})
	id = r.run(p)[0]
	ctx, cancel := context.WithCancel(t.Context())
	out = dockertest.NewBuffer()
	go func() { done <- r.Logs(ctx, id, &v1.PodLogOptions{Follow: true}, out, nil) }()
	out.Await(t, "one\n")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("abandoned: %v", err)
	}
}

func testExecSync(t *testing.T, r *rig) {
	p := r.pod("execsync", []string{"pause"})
	id := r.run(p)[0]
	for _, test := range []struct {
		argv   []string
		code   int
		output string
	}{
		{[]string{programPath, "exit", "0"}, 0, ""},
		{[]string{programPath, "exit", "9", "oops"}, 9, "oops\n"},
		{[]string{programPath, "flood", "100000"}, 0, strings.Repeat("x", 64)},
	} {
		code, output, err := r.ExecSync(t.Context(), id, test.argv, 64)
		if err != nil || code != test.code || string(output) != test.output {
			t.Errorf("%q: %d, %q, %v", test.argv, code, output, err)
		}
	}
	code, output, err := r.ExecSync(t.Context(), id, []string{"/nonsense"}, 1000)
	said := string(output)
	if err != nil {
		said = err.Error()
	}
	said = strings.ToLower(said) // crun writes "No such file"
	if err == nil && (!versions.LessThan(r.Version(), "1.25") || code == 0) || !strings.Contains(said, "executable file not found") && !strings.Contains(said, "no such file") {
		t.Errorf("no such executable: %d, %q, %v", code, output, err)
	}
	if _, _, err := r.ExecSync(t.Context(), id, nil, 10); err == nil {
		t.Error("no command: no error")
	}
	ctx, done := newDeadline(t), make(chan error, 1)
	go func() {
		_, _, err := r.ExecSync(ctx, id, []string{programPath, "stubborn"}, 10)
		done <- err
	}()
	r.await("the command", func() bool { return r.runsCommand(id) })
	close(ctx.over)
	if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("timeout: %v", err)
	}
	r.apply(p, pod.Step{Action: pod.StopContainer, ID: id})
	if _, _, err := r.ExecSync(t.Context(), id, []string{programPath, "exit", "0"}, 10); err == nil || !strings.Contains(err.Error(), "not running") {
		t.Errorf("in a container that does not run: %v", err)
	}
}

// runsCommand says whether some command runs in a container.
func (r *rig) runsCommand(id string) bool {
	c, err := r.API(r.t.Context())
	if err != nil {
		return false
	}
	in, err := r.Inspect(r.t.Context(), id)
	return err == nil && slices.ContainsFunc(in.ExecIDs, func(id string) bool {
		command, err := c.ContainerExecInspect(r.t.Context(), id)
		return err == nil && command.Running
	})
}

func testExec(t *testing.T, r *rig) {
	p := r.pod("exec", []string{"pause"})
	id := r.run(p)[0]
	in, type_ := io.Pipe()
	out := dockertest.NewBuffer()
	done := make(chan error, 1)
	go func() {
		done <- r.Exec(t.Context(), id, []string{programPath, "cat"}, in, out, dockertest.NewBuffer(), false, nil)
	}()
	_, _ = io.WriteString(type_, "hello\n")
	out.Await(t, "hello\n")
	type_.Close()
	if err := <-done; err != nil || out.String() != "hello\nend of input\n" {
		t.Errorf("input closed: %q, %v", out.String(), err)
	}
	var exit utilexec.ExitError
	out = dockertest.NewBuffer()
	if err := r.Exec(t.Context(), id, []string{programPath, "exit", "6", "x"}, nil, nil, out, false, nil); !errors.As(err, &exit) || exit.ExitStatus() != 6 || out.String() != "x\n" {
		t.Errorf("exit code: %v, %q", err, out.String())
	}
	out = dockertest.NewBuffer()
	if err := r.Exec(t.Context(), id, []string{programPath, "both"}, nil, out, nil, true, nil); err != nil || strings.ReplaceAll(out.String(), "\r", "") != "to stdout\nto stderr\n" {
		t.Errorf("terminal: %q, %v", out.String(), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	in, type_ = io.Pipe()
	defer type_.Close()
	out = dockertest.NewBuffer()
	go func() { done <- r.Exec(ctx, id, []string{programPath, "pause", "ready"}, in, out, nil, false, nil) }()
	out.Await(t, "ready")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the client went away: %v", err)
	}
	out = dockertest.NewBuffer()
	go func() { done <- r.Exec(t.Context(), id, []string{programPath, "stubborn"}, nil, out, nil, false, nil) }()
	r.apply(p, pod.Step{Action: pod.StopContainer, ID: id})
	if err := <-done; err == nil {
		t.Error("the container went away: no error")
	}
}

func testAttach(t *testing.T, r *rig) {
	p := r.pod("attach", []string{"cat"})
	p.Spec.Containers[0].Stdin, p.Spec.Containers[0].StdinOnce = true, true
	id := r.run(p)[0]
	in, type_ := io.Pipe()
	out := dockertest.NewBuffer()
	done := make(chan error, 1)
	go func() { done <- r.Attach(t.Context(), id, in, out, nil, false, nil) }()
	_, _ = io.WriteString(type_, "hello\n")
	out.Await(t, "hello\n")
	type_.Close()
	if err := <-done; err != nil || out.String() != "hello\nend of input\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
	if c := r.exited(p, "c0"); c.ExitCode != 0 {
		t.Errorf("%+v", c)
	}
	if err := r.Attach(t.Context(), id, nil, out, nil, false, nil); err == nil {
		t.Error("attached to a container that does not run")
	}
}
