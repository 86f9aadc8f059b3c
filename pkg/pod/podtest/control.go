package podtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
)

// Memory is a message for Exit.
const Memory = "memory"

// Exit ends a running container, as if its process exited. The message OOM means that the kernel killed it for lack of memory, and Memory that the engine
// does not know that.
func (e *Engine) Exit(id string, code int, message string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for uid, p := range e.pods {
		for i := range p.Containers {
			if c := &p.Containers[i]; c.ID == id && c.State == pod.Running {
				c.State, c.FinishedAt, c.ExitCode, c.Message, c.Addresses = pod.Exited, time.Now(), code, message, nil
				c.OOMKilled = message == "OOM"
				if message == Memory {
					c.Message = ""
					e.cgroups.killed(uid)
				}
				e.Log.Printf("engine: %s exits with %d", id, code)
				e.tell(uid)
				return nil
			}
		}
	}
	return fmt.Errorf("%s does not run", id)
}

// Lose removes a container or sandbox behind the agent's back.
func (e *Engine) Lose(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for uid, p := range e.pods {
		p.Containers = slices.DeleteFunc(p.Containers, func(c pod.Container) bool { return c.ID == id })
		p.Sandboxes = slices.DeleteFunc(p.Sandboxes, func(s pod.Sandbox) bool { return s.ID == id })
		e.tell(uid)
	}
	e.Log.Printf("engine: %s disappears", id)
}

// Restart ends everything that runs, like an engine without live-restore.
func (e *Engine) Restart() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.Log.Printf("engine: restarts")
	for uid, p := range e.pods {
		for i := range p.Sandboxes {
			p.Sandboxes[i].Running, p.Sandboxes[i].Addresses = false, nil
		}
		for i := range p.Containers {
			if c := &p.Containers[i]; c.State == pod.Running {
				c.State, c.FinishedAt, c.ExitCode = pod.Exited, time.Now(), 137
			}
		}
		e.tell(uid)
	}
	e.tell("")
}

// SetDown makes all calls to the engine fail, or work again.
func (e *Engine) SetDown(down bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.down = down
	if !down {
		e.tell("")
	}
}

// Fail makes the given number of action steps on container ("": any) fail with err.
func (e *Engine) Fail(action, container string, times int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failures = append(e.failures, &failure{action, container, times, err})
}

// Stubborn makes a container ignore the stop signal.
func (e *Engine) Stubborn(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stubborn[id] = true
}

// Hang makes commands in a container take d.
func (e *Engine) Hang(id string, d time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hangs[id] = d
}

// SetProbe sets the result of a probe: id is the container, or "" for all, and name is the first word of the exec command.
func (e *Engine) SetProbe(id, name string, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.results[id+" "+name] = ok
}

// Hook implements pod.Prober: podtest supports no HTTP hooks.
func (e *Engine) Hook(context.Context, *v1.HTTPGetAction, pod.ProbeTarget) (bool, error) {
	return false, errors.New("podtest has hooks by exec alone")
}

// Probe implements pod.Prober for exec handlers, with the results from SetProbe.
func (e *Engine) Probe(ctx context.Context, handler v1.ProbeHandler, target pod.ProbeTarget) (pod.ProbeResult, error) {
	if handler.Exec == nil || len(handler.Exec.Command) == 0 {
		return pod.ProbeResult{}, errors.New("podtest probes by exec alone")
	}
	name := handler.Exec.Command[0]
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down {
		return pod.ProbeResult{}, errDown
	}
	if c := e.find(target.ContainerID); c == nil || c.State != pod.Running {
		return pod.ProbeResult{}, fmt.Errorf("container %s does not run", target.ContainerID)
	}
	ok := e.results[target.ContainerID+" "+name] || e.results[" "+name]
	return pod.ProbeResult{OK: ok, Detail: name + " says no"}, ctx.Err()
}

// ExecSync implements pod.Executor: "false" exits with 1, "exit" ends the container, all else succeeds, after the time set by Hang.
func (e *Engine) ExecSync(ctx context.Context, containerID string, argv []string, limit int) (int, []byte, error) {
	e.Log.Printf("exec: %s %s", containerID, strings.Join(argv, " "))
	e.mu.Lock()
	c, hang, down := e.find(containerID), e.hangs[containerID], e.down
	runs := c != nil && c.State == pod.Running
	e.mu.Unlock()
	if down {
		return 0, nil, errDown
	}
	if !runs {
		return 0, nil, fmt.Errorf("container %s does not run", containerID)
	}
	if err := sleep(ctx, max(hang, time.Millisecond)); err != nil {
		e.Log.Printf("exec: %s %s is cut short", containerID, strings.Join(argv, " "))
		return 0, nil, err
	}
	if argv[0] == "false" {
		return 1, []byte("no"), nil
	}
	return 0, nil, nil
}

// Starts counts the starts of each container attempt; more than one is wrong.
func (e *Engine) Starts() map[string]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.starts)
}

// Running lists the running ids, sorted.
func (e *Engine) Running() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var ids []string
	for _, p := range e.pods {
		for _, s := range p.Sandboxes {
			if s.Running {
				ids = append(ids, s.ID)
			}
		}
		for _, c := range p.Containers {
			if c.State == pod.Running {
				ids = append(ids, c.ID)
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// String prints everything that the engine has.
func (e *Engine) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var rows []string
	for _, p := range e.pods {
		for _, s := range p.Sandboxes {
			state := "exited"
			if s.Running {
				state = "running"
			}
			rows = append(rows, fmt.Sprintf("%s\t%s\n", s.ID, state))
		}
		for _, c := range p.Containers {
			state := string(c.State)
			if c.State == pod.Exited {
				state = fmt.Sprintf("exited (%d)", c.ExitCode)
			}
			rows = append(rows, fmt.Sprintf("%s\t%s\n", c.ID, state))
		}
	}
	slices.Sort(rows)
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprint(w, row)
	}
	w.Flush()
	return b.String()
}
