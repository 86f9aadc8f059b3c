package lab

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// task is the progress of one program that a step builds.
type task struct {
	name  string
	began time.Time
	path  string // of the program; it exists and is new once linked

	mu         sync.Mutex
	main       string          // its main package; "": not known yet
	packages   map[string]bool // its packages; true: compiled in this build
	early      map[string]bool // compiled before packages was known
	downloaded int             // modules
}

// compiled records that a package was compiled.
func (t *task) compiled(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.packages == nil {
		t.early[name] = true
	} else if _, ours := t.packages[name]; ours {
		t.packages[name] = true
	}
}

// madeOf records the program's packages.
func (t *task) madeOf(main string, packages []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.main, t.packages = main, map[string]bool{main: t.early[main]}
	for _, name := range packages {
		t.packages[name] = t.early[name]
	}
}

// String returns the program's progress: "etcd: 212 of 598 packages, 34 s".
func (t *task) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	count := 0
	for _, done := range t.packages {
		if done {
			count++
		}
	}
	state := ""
	switch info, err := os.Stat(t.path); {
	case err == nil && info.ModTime().After(t.began):
		state = "built"
	case t.main != "" && t.packages[t.main]:
		state = "linking"
	case count > 0:
		state = fmt.Sprintf("%d of %d packages", count, len(t.packages))
	case t.downloaded > 0:
		state = fmt.Sprintf("%d modules downloaded", t.downloaded)
	case len(t.packages) > 0:
		state = fmt.Sprintf("%d packages, none compiled yet", len(t.packages))
	default:
		state = "building"
	}
	return fmt.Sprintf("%s: %s, %.0f s", t.name, state, time.Since(t.began).Seconds())
}

// compilation parses the output of `go build -v`: names of packages as they are compiled, and downloads. It writes the
// rest to log.
type compilation struct {
	tasks   []*task
	log     io.Writer
	partial []byte
}

func (c *compilation) Write(data []byte) (int, error) {
	c.partial = append(c.partial, data...)
	for {
		i := bytes.IndexByte(c.partial, '\n')
		if i < 0 {
			return len(data), nil
		}
		line := c.partial[:i+1]
		c.partial = c.partial[i+1:]
		if c.line(strings.TrimSuffix(string(line), "\n")) {
			continue
		}
		if _, err := c.log.Write(line); err != nil {
			return 0, err
		}
	}
}

// line reports whether a line is only about progress. A package path has no spaces; compiler messages do.
func (c *compilation) line(line string) bool {
	if strings.HasPrefix(line, "go: downloading ") {
		for _, t := range c.tasks {
			t.mu.Lock()
			t.downloaded++
			t.mu.Unlock()
		}
		return false
	}
	if line == "" || strings.ContainsAny(line, " \t:") {
		return false
	}
	for _, t := range c.tasks {
		t.compiled(line)
	}
	return true
}

// Close handles a last line without a newline.
func (c *compilation) Close() error {
	_, err := c.log.Write(c.partial)
	return err
}

// build runs a command that builds packages in dir and prints them as `go build -v` does. names are the programs that
// it writes to out.
func (c *Cluster) build(ctx context.Context, log, dir, out string, packages, names, flags, env []string, argv ...string) error {
	began := time.Now()
	var tasks []*task
	for _, name := range names {
		tasks = append(tasks, &task{name: name, began: began, path: filepath.Join(out, name), early: map[string]bool{}})
	}
	defer c.steps.show(tasks)()
	listing, stop := context.WithCancel(ctx)
	var listed sync.WaitGroup
	listed.Go(func() { listPackages(listing, dir, packages, flags, env, tasks) })
	defer listed.Wait()
	defer stop()
	return c.loggedTo(ctx, log, dir, env, func(log io.Writer) io.WriteCloser { return &compilation{tasks: tasks, log: log} }, argv...)
}

// listPackages lists the packages of each program while the build runs. It ignores errors: the build fails too and
// reports them.
func listPackages(ctx context.Context, dir string, packages, flags, env []string, tasks []*task) {
	argv := append([]string{"list", "-f", `{{.ImportPath}}{{range .Deps}} {{.}}{{end}}`}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(argv, packages...)...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.Output()
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err != nil || len(lines) != len(tasks) {
		return
	}
	for i, line := range lines { // in the order of the request
		words := strings.Fields(line)
		tasks[i].madeOf(words[0], words[1:])
	}
}
