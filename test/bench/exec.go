package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
)

// execCommand is the first argument of this program's process in a host's network, where the kubelet listens.
const execCommand = "exec-client"

// echo is the measured command: it writes one line and exits.
var echo = []string{"/sample", "echoargs", "x"}

// exec measures the time to a command's first byte, through the engine's API and each kubelet's port. Each exec has its
// own connection, as with kubectl; an unmeasured one goes first, so that the kubelets have authenticated the client.
func (b *bench) exec(ctx context.Context) error {
	bare, err := b.engine.execs(ctx, execs)
	if err != nil {
		return err
	}
	took := map[*agent]durations{}
	for _, agent := range b.agents() {
		if _, err := agent.pods.run(ctx, "exec", 1, false); err != nil {
			return err
		}
		if took[agent], err = b.execsAt(ctx, agent, agent.pods.name("exec", 0)); err != nil {
			return err
		}
		if _, err := agent.pods.remove(ctx); err != nil {
			return err
		}
	}
	row("exec, first byte p50", ms, bare.at(0.5), took[b.upstream].at(0.5), took[b.ours].at(0.5))
	row("exec, first byte p99", ms, bare.at(0.99), took[b.upstream].at(0.99), took[b.ours].at(0.99))
	return nil
}

func (b *bench) execsAt(ctx context.Context, agent *agent, pod string) (durations, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	out, err := agent.host.Exec(ctx, self, execCommand, b.cluster.Control.PKI("admin.kubeconfig"), agent.host.Addr.String(), pod, strconv.Itoa(execs))
	if err != nil {
		return nil, err
	}
	var all durations
	return all, json.Unmarshal([]byte(out), &all)
}

// execMain is the client process: it prints the times in milliseconds as JSON.
func execMain(ctx context.Context) error {
	if len(os.Args) != 6 {
		return fmt.Errorf("%s: want KUBECONFIG ADDRESS POD COUNT", execCommand)
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Args[2])
	if err != nil {
		return err
	}
	count, err := strconv.Atoi(os.Args[5])
	if err != nil {
		return err
	}
	target := url.URL{
		Scheme: "https", Host: os.Args[3] + ":10250", Path: "/exec/" + namespace + "/" + os.Args[4] + "/web",
		RawQuery: url.Values{"command": echo, "output": {"1"}}.Encode(),
	}
	config.Host = target.Host
	var all durations
	for range count + 1 {
		took, err := execOnce(ctx, config, target.String())
		if err != nil {
			return err
		}
		all = append(all, took)
	}
	return json.NewEncoder(os.Stdout).Encode(all[1:])
}

func execOnce(ctx context.Context, config *rest.Config, target string) (float64, error) {
	begin := time.Now()
	executor, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, target)
	if err != nil {
		return 0, err
	}
	out := &firstByte{begin: begin}
	if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out}); err != nil {
		return 0, err
	}
	if out.took == 0 {
		return 0, fmt.Errorf("%s: the command wrote nothing", target)
	}
	return inMS(out.took), nil
}

// firstByte records when the first byte is written to it.
type firstByte struct {
	begin time.Time
	took  time.Duration
}

func (f *firstByte) Write(data []byte) (int, error) {
	if f.took == 0 && len(data) > 0 {
		f.took = time.Since(f.begin)
	}
	return len(data), nil
}

// execs measures n commands in one container of the bare engine.
func (e *engine) execs(ctx context.Context, n int) (durations, error) {
	pod, err := e.pod(ctx)
	if err != nil {
		return nil, err
	}
	defer e.remove(context.WithoutCancel(ctx), pod.ids)
	var all durations
	for range n {
		begin := time.Now()
		var created struct{ ID string }
		if err := e.call(ctx, http.MethodPost, "/containers/"+pod.ids[1]+"/exec", map[string]any{"AttachStdout": true, "Cmd": echo}, &created); err != nil {
			return nil, err
		}
		body, err := e.stream(ctx, http.MethodPost, "/exec/"+created.ID+"/start", map[string]any{"Detach": false})
		if err != nil {
			return nil, err
		}
		_, err = io.ReadFull(body, make([]byte, 1))
		all = append(all, inMS(time.Since(begin)))
		_, _ = io.Copy(io.Discard, body)
		body.Close()
		if err != nil {
			return nil, fmt.Errorf("the command wrote nothing: %w", err)
		}
	}
	return all, nil
}
