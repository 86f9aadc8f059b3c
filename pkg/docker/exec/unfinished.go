package exec

import (
	"context"
	"strings"
	"sync"

	cerrdefs "github.com/containerd/errdefs"
)

// unfinished are the commands whose deadline has passed and that may still run. The same command of the same container waits for them: an engine
// that takes longer to start a command than a probe's timeout would otherwise get one more with each period, and become slower by each.
type unfinished struct {
	mu       sync.Mutex
	commands map[commandKey]predecessor
}

type commandKey struct{ container, argv string }

// predecessor is the newest unfinished command. gone is closed when it and those before it have ended, or are no longer waited for.
type predecessor struct {
	id   string
	gone <-chan struct{}
}

func keyOf(containerID string, argv []string) commandKey {
	return commandKey{containerID, strings.Join(argv, "\x00")}
}

// endings is how often EndCommands tries to end a command that can be neither ended nor seen to end, before the next one may start: every half a
// minute.
const endings = 10

// add records a command and has end called until it returns true, in the background.
func (u *unfinished) add(key commandKey, id string, end func() bool) {
	gone := make(chan struct{})
	u.mu.Lock()
	before, had := u.commands[key]
	if u.commands == nil {
		u.commands = map[commandKey]predecessor{}
	}
	u.commands[key] = predecessor{id, gone}
	u.mu.Unlock()
	go func() { // not awaited: it ends after endings, and its caller, whose deadline has passed, must not wait for that
		defer close(gone)
		for try := 0; try < endings && !end(); try++ {
		}
		if had {
			<-before.gone
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.commands[key].id == id {
			delete(u.commands, key)
		}
	}()
}

// await waits until no command of key is unfinished. If ctx ends before, it returns the newest one's id and false.
func (u *unfinished) await(ctx context.Context, key commandKey) (id string, ok bool) {
	u.mu.Lock()
	last, waits := u.commands[key]
	u.mu.Unlock()
	if !waits {
		return "", true
	}
	select {
	case <-last.gone:
		return "", true
	case <-ctx.Done():
		return last.id, false
	}
}

// answers says whether the engine knows about a command, or that there is none, within killPatience.
func (e *Executor) answers(ctx context.Context, execID string) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killPatience)
	defer cancel()
	_, err := e.command(ctx, execID)
	return err == nil || cerrdefs.IsNotFound(err)
}

// endUnfinished ends a command of a probe or hook after its timeout. It waits a moment for the engine and says whether the engine answered; it
// continues in the background.
func (e *Executor) endUnfinished(ctx context.Context, containerID string, argv []string, execID string) (answers bool) {
	first, ctx := make(chan bool, 1), context.WithoutCancel(ctx)
	e.unfinished.add(keyOf(containerID, argv), execID, func() bool {
		left := map[string]string{execID: containerID}
		e.EndCommands(ctx, left, first)
		return len(left) == 0
	})
	select {
	case answers = <-first:
	case <-e.engine.Clock().After(killPatience):
	}
	return answers
}
