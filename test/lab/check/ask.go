package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/test/lab"
)

type do = func(context.Context) (string, error)

// fromHost sends a request to the sample server from a host's network namespace.
func (s *suite) fromHost(host *lab.Host, addr string) do {
	return func(ctx context.Context) (string, error) {
		out, err := host.Exec(ctx, filepath.Join(s.cluster.Tools, "sample"), "get", "http://"+addr+"/")
		return out, wantWords(out, "hello from iis", err)
	}
}

// fromPod sends a request to the sample server from a pod.
func (s *suite) fromPod(pod, addr string) do {
	return s.execWant(pod, "hello from iis", "/sample", "get", "http://"+addr+"/")
}

// execWant runs a command in a pod and requires every word of want in its output.
func (s *suite) execWant(pod, want string, argv ...string) do {
	return func(ctx context.Context) (string, error) {
		out, err := s.cluster.Kubectl(ctx, append([]string{"exec", pod, "--"}, argv...)...)
		return want, wantWords(out, want, err)
	}
}

func wantWords(out, want string, err error) error {
	if err != nil {
		return err
	}
	for _, word := range strings.Fields(want) {
		if !strings.Contains(out, word) {
			return fmt.Errorf("want %q, got %q", want, out)
		}
	}
	return nil
}

// spread sends requests to the Deployment's service until each of its pods has answered.
func (s *suite) spread(host *lab.Host) do {
	return func(ctx context.Context) (string, error) {
		seen := map[string]bool{}
		for n := 1; n <= 60; n++ {
			out, err := host.Exec(ctx, filepath.Join(s.cluster.Tools, "sample"), "get", "http://"+host.Addr.String()+":30081/hostname")
			if err != nil {
				return "", err
			}
			if seen[strings.TrimSpace(out)] = true; len(seen) == 3 {
				return fmt.Sprintf("after %d requests", n), nil
			}
		}
		return "", fmt.Errorf("only %d of 3 pods answered 60 requests", len(seen))
	}
}

// collector collects output and waits for a text in it.
type collector struct {
	text chan string
	all  strings.Builder
}

func collect(r io.Reader) *collector {
	c := &collector{text: make(chan string, 16)}
	go func() {
		defer close(c.text)
		buffer := make([]byte, 4096)
		for {
			n, err := r.Read(buffer)
			if n > 0 {
				c.text <- string(buffer[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	return c
}

// await returns when the output contains want; otherwise the error shows the output.
func (c *collector) await(ctx context.Context, want string) error {
	for !strings.Contains(c.all.String(), want) {
		select {
		case text, more := <-c.text:
			if !more {
				return fmt.Errorf("ended without %q: %q", want, c.all.String())
			}
			c.all.WriteString(text)
		case <-ctx.Done():
			return fmt.Errorf("no %q in time: %q: %w", want, c.all.String(), ctx.Err())
		}
	}
	return nil
}

// start runs a command and collects its output; end stops it and releases everything.
func start(ctx context.Context, argv ...string) (in io.WriteCloser, out *collector, end func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	reader, writer := io.Pipe()
	cmd.Stdout, cmd.Stderr = writer, writer
	cmd.WaitDelay = time.Second
	if in, err = cmd.StdinPipe(); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, nil, nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait()
		writer.CloseWithError(errors.New("ended"))
	}()
	end = func() {
		cancel()
		reader.Close()
		<-done
	}
	return in, collect(reader), end, nil
}

// followLogs follows a pod's log, makes it write a line and waits for that line.
func (s *suite) followLogs(ctx context.Context, pod *v1.Pod) (string, error) {
	_, out, end, err := start(ctx, s.cluster.KubectlPath(), "--kubeconfig="+s.cluster.Kubeconfig(), "logs", "-f", pod.Name)
	if err != nil {
		return "", err
	}
	defer end()
	if err := out.await(ctx, "serving on"); err != nil {
		return "", err
	}
	marker := fmt.Sprintf("/marker-%d", time.Now().UnixNano())
	begin := time.Now()
	// The page does not exist; the log shows the request.
	_, _ = s.cluster.Node(pod.Spec.NodeName).Exec(ctx, filepath.Join(s.cluster.Tools, "sample"), "get", "http://"+pod.Status.PodIP+marker)
	if err := out.await(ctx, marker); err != nil {
		return "", err
	}
	return fmt.Sprintf("a new line after %d ms", time.Since(begin).Milliseconds()), nil
}

// interactive has a terminal (of `script`) and types into a shell in the pod.
func (s *suite) interactive(ctx context.Context, pod *v1.Pod) (string, error) {
	kubectl := fmt.Sprintf("%s --kubeconfig=%s exec -it %s -- /bin/sh", s.cluster.KubectlPath(), s.cluster.Kubeconfig(), pod.Name)
	in, out, end, err := start(ctx, "script", "-qec", kubectl, "/dev/null")
	if err != nil {
		return "", err
	}
	defer end()
	if err := out.await(ctx, "# "); err != nil { // the shell prompts only on a terminal
		return "", err
	}
	if _, err := io.WriteString(in, "hostname\n"); err != nil {
		return "", err
	}
	if err := out.await(ctx, "\r\n"+pod.Name+"\r\n"); err != nil {
		return "", err
	}
	_, err = io.WriteString(in, "exit\n")
	return "prompt, echo and answer", err
}
