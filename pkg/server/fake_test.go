package server

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/klog/v2"
	utilexec "k8s.io/utils/exec"

	"github.com/winkube/winkube/pkg/pod"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// klogged is the whole log, at a high verbosity, so that tests can search it for secrets.
var klogged safeBuffer

type safeBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

func TestMain(m *testing.M) {
	flags := flag.NewFlagSet("klog", flag.ExitOnError)
	klog.InitFlags(flags)
	for name, value := range map[string]string{"v": "6", "logtostderr": "false", "stderrthreshold": "FATAL"} {
		_ = flags.Set(name, value)
	}
	klog.SetOutput(&klogged)
	code := m.Run()
	klog.Flush()
	for _, secret := range []string{"good-token", "root-token", "stranger-token", "guess", "PRIVATE KEY"} {
		if strings.Contains(klogged.String(), secret) {
			fmt.Printf("FAIL: the log has the secret %q\n", secret)
			code = 1
		}
	}
	os.Exit(code)
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.ReplaceAll(string(want), "\r\n", "\n"); got != want {
		t.Errorf("%s differs (rewrite with -update); got:\n%s", path, got)
	}
}

// fakeAPI is the reviewing part of an API server. tokens maps tokens to users; rules are the rights of users by name; "broken" fails.
type fakeAPI struct {
	mu     sync.Mutex
	tokens map[string]string
	rules  map[string][]string // user -> "verb subresource"; "*" is everything
	asked  []string            // requested reviews, as text
	fail   error
	gate   chan struct{} // when set, reviews wait for it
}

func (f *fakeAPI) ask(text string) error {
	f.mu.Lock()
	f.asked = append(f.asked, text)
	gate, fail := f.gate, f.fail
	f.mu.Unlock()
	if gate != nil {
		<-gate
	}
	return fail
}

func (f *fakeAPI) log() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.asked, "\n")
}

type tokenReviews struct{ *fakeAPI }

func (f tokenReviews) Create(_ context.Context, review *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	if err := f.ask("token"); err != nil {
		return nil, err
	}
	out := review.DeepCopy()
	f.mu.Lock()
	defer f.mu.Unlock()
	if user, ok := f.tokens[review.Spec.Token]; ok {
		out.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: user, UID: "uid-" + user, Groups: []string{"testers"}}}
	} else {
		out.Status.Error = "no such token"
	}
	return out, nil
}

type accessReviews struct{ *fakeAPI }

func (f accessReviews) Create(_ context.Context, review *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	r := review.Spec.ResourceAttributes
	if r == nil || review.Spec.NonResourceAttributes != nil || review.Spec.User == "" || r.Version != "v1" || r.Name != "node-1" || r.Resource != "nodes" {
		return nil, fmt.Errorf("bad review: %+v", review.Spec)
	}
	if err := f.ask(fmt.Sprintf("%s %s %s", review.Spec.User, r.Verb, r.Subresource)); err != nil {
		return nil, err
	}
	if review.Spec.User == "broken" {
		return nil, errors.New("etcd is on holiday")
	}
	out := review.DeepCopy()
	f.mu.Lock()
	defer f.mu.Unlock()
	rules := f.rules[review.Spec.User]
	out.Status.Allowed = slices.Contains(rules, "*") || slices.Contains(rules, r.Verb+" "+r.Subresource)
	return out, nil
}

// fakePods has one running pod default/web with containers main and tty, a finished init container, and a waiting pod.
type fakePods struct{ pods []*v1.Pod }

func newFakePods() *fakePods {
	running := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	web := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "uid-web"},
		Spec: v1.PodSpec{
			InitContainers: []v1.Container{{Name: "setup", Image: "setup:1"}},
			Containers:     []v1.Container{{Name: "main", Image: "main:1"}, {Name: "tty", Image: "tty:1", TTY: true, Stdin: true}},
		},
		Status: v1.PodStatus{
			Phase:                 v1.PodRunning,
			InitContainerStatuses: []v1.ContainerStatus{{Name: "setup", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ContainerID: "docker://id-setup"}}}},
			ContainerStatuses:     []v1.ContainerStatus{{Name: "main", ContainerID: "docker://id-main", State: running}, {Name: "tty", ContainerID: "docker://id-tty", State: running}},
		},
	}
	waiting := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "waiting", UID: "uid-waiting"},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "main"}}},
		Status:     v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{{Name: "main", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}}}},
	}
	return &fakePods{pods: []*v1.Pod{web, waiting}}
}

func (f *fakePods) Pods() []*v1.Pod { return f.pods }

func (f *fakePods) Lookup(namespace, name string, uid types.UID, container string) (Ref, bool) {
	for _, pod := range f.pods {
		if pod.Namespace != namespace || pod.Name != name || uid != "" && pod.UID != uid {
			continue
		}
		ref := Ref{Pod: pod}
		if pod.Status.Phase == v1.PodRunning {
			ref.NetworkID, ref.PodIPs = "id-sandbox", fakePodIPs
		}
		if status := containerStatus(pod, container); status != nil && status.State.Running != nil {
			ref.ContainerID = strings.TrimPrefix(status.ContainerID, "docker://")
		}
		return ref, true
	}
	return Ref{}, false
}

type fakeObserver map[types.UID]pod.Observed

func (f fakeObserver) ObserveAll(context.Context) (map[types.UID]pod.Observed, error) { return f, nil }

// fakeEngine runs a few commands in memory. calls counts those in progress; ended reports which have ended and how.
type fakeEngine struct {
	mu    sync.Mutex
	calls int
	ended chan string
	lines chan string // output of followed logs, until it is closed
	dial  func(ctx context.Context, id string, port int) (net.Conn, error)
	seen  *v1.PodLogOptions
}

func newFakeEngine() *fakeEngine {
	return &fakeEngine{ended: make(chan string, 1000), lines: make(chan string)}
}

func (f *fakeEngine) begin(name string) func(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	return func(ctx context.Context) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.calls--
		f.ended <- fmt.Sprintf("%s: %v", name, ctx.Err())
	}
}

func (f *fakeEngine) running() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

func (f *fakeEngine) Logs(ctx context.Context, id string, options *v1.PodLogOptions, stdout, stderr io.Writer) error {
	defer f.begin("logs " + id)(ctx)
	f.mu.Lock()
	f.seen = options.DeepCopy()
	f.mu.Unlock()
	if id == "id-setup" {
		return errors.New("no such container: id-setup")
	}
	if !options.Follow {
		for _, w := range []struct {
			w    io.Writer
			line string
		}{{stdout, "to stdout\n"}, {stderr, "to stderr\n"}} {
			if w.w != nil {
				if _, err := io.WriteString(w.w, w.line); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for {
		select {
		case line, ok := <-f.lines:
			if !ok {
				return errors.New("the engine stopped")
			}
			if _, err := io.WriteString(stdout, line); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fakeEngine) Exec(ctx context.Context, id string, cmd []string, in io.Reader, out, errw io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	defer f.begin(strings.Join(cmd, " "))(ctx)
	if id != "id-main" && id != "id-tty" {
		return fmt.Errorf("no such container: %q", id)
	}
	if tty && errw != nil {
		return errors.New("a terminal has no stderr")
	}
	switch cmd[0] {
	case "echo":
		_, err := fmt.Fprintln(out, strings.Join(cmd[1:], " "))
		return err
	case "both":
		_, _ = io.WriteString(out, "to stdout\n")
		_, err := io.WriteString(errw, "to stderr\n")
		return err
	case "exit":
		code, _ := strconv.Atoi(cmd[1])
		return fmt.Errorf("wrapped: %w", utilexec.CodeExitError{Err: fmt.Errorf("exit %d", code), Code: code})
	case "cat":
		_, err := io.Copy(out, in)
		return err
	case "take":
		n, _ := strconv.ParseInt(cmd[1], 10, 64)
		_, err := io.CopyN(out, in, n)
		return err
	case "fail":
		return errors.New("the engine is out of order")
	case "bytes":
		n, _ := strconv.ParseInt(cmd[1], 10, 64)
		_, err := io.CopyN(out, pattern{}, n)
		return err
	case "sizes":
		for range 2 {
			size := <-resize
			if _, err := fmt.Fprintf(out, "%dx%d tty=%t\n", size.Width, size.Height, tty); err != nil {
				return err
			}
		}
		return nil
	case "hang":
		if out != nil {
			_, _ = io.WriteString(out, "hanging\n")
		}
		<-ctx.Done()
		return ctx.Err()
	case "nostreams":
		if in != nil || errw != nil {
			return errors.New("streams that were not requested")
		}
		return nil
	}
	return fmt.Errorf("unknown command %q", cmd)
}

func (f *fakeEngine) Attach(ctx context.Context, id string, in io.Reader, out, errw io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	defer f.begin("attach " + id)(ctx)
	if tty != (id == "id-tty") || tty && errw != nil {
		return fmt.Errorf("wrong terminal: tty %t for %s, stderr %v", tty, id, errw)
	}
	_, _ = io.WriteString(out, "attached to "+id+"\n")
	if in == nil {
		return nil
	}
	_, err := io.Copy(out, in)
	return err
}

var fakePodIPs = []netip.Addr{netip.MustParseAddr("10.244.1.7")}

func (f *fakeEngine) Dial(ctx context.Context, id string, pod []netip.Addr, port int) (net.Conn, error) {
	if id != "id-sandbox" || !slices.Equal(pod, fakePodIPs) {
		return nil, fmt.Errorf("no such container: %q of %v", id, pod)
	}
	return f.dial(ctx, id, port)
}

// pattern is an endless text that repeats every 251 bytes, if it is read in large pieces.
type pattern struct{}

func (pattern) Read(p []byte) (int, error) {
	n := min(len(p), 251*100)
	for i := range n {
		p[i] = byte(i % 251)
	}
	return n, nil
}
