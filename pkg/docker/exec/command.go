package exec

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/client"
	"k8s.io/apimachinery/pkg/util/wait"
)

// commandMark marks the commands of probes and hooks, so that this and later agents can distinguish them from those of users. It is a key sequence
// that would detach from the command's terminal, if it had one. The engine stores no other field of a command that the command itself does not see.
const commandMark = "ctrl-_,ctrl-^,ctrl-_"

var commandMarkBytes = []byte{0x1f, 0x1e, 0x1f}

// killPatience is how long a caller whose deadline has passed waits for an unresponsive engine.
const killPatience = 2 * time.Second

// endPauses are the intervals between checks of a requested command that does not run yet: a busy engine may be about to start it.
func endPauses() wait.Backoff { return wait.Backoff{Duration: time.Second, Factor: 2, Steps: 5} }

// commandState is the state of a command. Docker's client omits the keys.
type commandState struct {
	Running    bool
	ExitCode   *int // nil: it has not ended, or not started
	Pid        int
	DetachKeys []byte
}

func (e *Executor) command(ctx context.Context, execID string) (was commandState, err error) {
	err = e.engine.Call(ctx, "inspect a command", func(ctx context.Context, c *client.Client) error {
		return e.engine.Get(ctx, c, "/exec/"+execID+"/json", &was)
	})
	was.Running = was.Running && was.Pid != 0 && e.os == "linux"
	return was, err
}

// EndCommands kills abandoned commands of probes and hooks, but not commands of users. containers maps each command's id to its container;
// EndCommands removes those that have ended. first, a buffered channel, receives whether the engine answered, if there is room. It blocks until
// all have ended, at most about half a minute, or until ctx ends.
func (e *Executor) EndCommands(ctx context.Context, containers map[string]string, first chan<- bool) {
	answered := false
	for try, pauses := 0, endPauses(); ; try++ {
		for id, container := range containers {
			was, err := e.command(ctx, id)
			answered = answered || err == nil || cerrdefs.IsNotFound(err)
			ours := bytes.Equal(was.DetachKeys, commandMarkBytes)
			switch {
			case ours && was.Running:
				e.kill(was.Pid, container)
			case cerrdefs.IsNotFound(err), err == nil && (!ours || was.ExitCode != nil):
			default:
				continue
			}
			delete(containers, id)
		}
		if try == 0 {
			select {
			case first <- answered:
			default:
			}
		}
		if len(containers) == 0 || pauses.Steps == 0 {
			return
		}
		select {
		case <-e.engine.Clock().After(pauses.Step()):
		case <-ctx.Done():
			return
		}
	}
}

// KillTree kills a process of a container and its descendants: killing only a shell would leave its children running in the container. pid is the
// engine's view; the process's cgroup, which names the container, proves that the pid has the same meaning here.
func KillTree(pid int, containerID string) {
	process, err := os.FindProcess(pid) // refers to this process even if the id is reused
	if err != nil {
		return
	}
	defer func() { _ = process.Release() }()
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	cgroup, err := os.ReadFile(filepath.Join(dir, "cgroup"))
	if err != nil || !strings.Contains(string(cgroup), containerID) {
		return
	}
	lists, _ := filepath.Glob(filepath.Join(dir, "task", "*", "children")) // by thread; the pattern is valid
	var children []string
	for _, list := range lists {
		if data, err := os.ReadFile(list); err == nil {
			children = append(children, strings.Fields(string(data))...)
		}
	}
	_ = process.Kill()
	for _, child := range children {
		if pid, err := strconv.Atoi(child); err == nil {
			KillTree(pid, containerID)
		}
	}
}

// head keeps the first limit bytes written to it and discards the rest: a command whose output is not read would hang.
type head struct {
	limit int
	data  []byte
}

func (h *head) Write(p []byte) (int, error) {
	if room := h.limit - len(h.data); room > 0 {
		h.data = append(h.data, p[:min(room, len(p))]...)
	}
	return len(p), nil
}
