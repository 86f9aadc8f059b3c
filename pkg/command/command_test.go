package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// The test program is its own child: if childVar is set, it does what its arguments say.
const childVar = "WINKUBE_COMMAND_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVar) == "" {
		os.Exit(m.Run())
	}
	switch os.Args[1] {
	case "cat":
		io.Copy(os.Stdout, os.Stdin)
	case "env":
		fmt.Print(strings.Join(os.Environ(), "\n"))
	case "fail":
		fmt.Println("on stdout")
		fmt.Fprintln(os.Stderr, "no chain by that name")
		os.Exit(3)
	case "complain":
		fmt.Println("The filename is incorrect.")
		os.Exit(1)
	case "long":
		fmt.Fprint(os.Stderr, strings.Repeat("x", 10*maxShown), "the end")
		os.Exit(1)
	case "spawn":
		if err := exec.Command(os.Args[0], "call", os.Args[2]).Start(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		callAndHang()
	case "call":
		callAndHang()
	case "hang":
		fmt.Println("started")
		<-time.After(time.Hour)
	}
	os.Exit(0)
}

// callAndHang holds a connection while this process lives.
func callAndHang() {
	conn, err := net.Dial("tcp", os.Args[2])
	if err == nil {
		_, err = io.Copy(io.Discard, conn)
	}
	fmt.Println(err)
	os.Exit(1)
}

func child(t *testing.T) (Runner, string) {
	t.Helper()
	t.Setenv(childVar, "1")
	t.Setenv("GOCOVERDIR", t.TempDir()) // otherwise a child built with -cover complains
	t.Setenv("LC_MESSAGES", "de_DE.UTF-8")
	t.Setenv("LANG", "de_DE.UTF-8")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return New(), exe
}

func TestRun(t *testing.T) {
	r, exe := child(t)
	out, err := r.Run(t.Context(), []byte("a\x00b"), exe, "cat")
	if err != nil || string(out) != "a\x00b" {
		t.Errorf("cat: %q, %v", out, err)
	}
	out, err = r.Run(t.Context(), nil, exe, "env")
	if err != nil {
		t.Fatal(err)
	}
	env := "\n" + string(out) + "\n"
	if !strings.Contains(env, "\nLC_ALL=C\n") || !strings.Contains(env, "\nLANG=C\n") || strings.Contains(env, "de_DE") {
		t.Errorf("not the C locale:%s", env)
	}
}

func TestRunFails(t *testing.T) {
	r, exe := child(t)
	for args, want := range map[string]string{
		"fail x":   `cannot run ` + fmt.Sprintf("%q", exe+" fail x") + `: exit status 3: no chain by that name`,
		"complain": `cannot run ` + fmt.Sprintf("%q", exe+" complain") + `: exit status 1: The filename is incorrect.`,
	} {
		_, err := r.Run(t.Context(), nil, exe, strings.Fields(args)...)
		if err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		if exit := (*ExitError)(nil); !errors.As(err, &exit) || exit.Code == 0 {
			t.Errorf("%s: no ExitError in %v", args, err)
		}
	}
	_, err := r.Run(t.Context(), nil, exe, "long")
	if err == nil || len(err.Error()) > maxShown+len(exe)+100 || !strings.HasSuffix(err.Error(), "the end") {
		t.Errorf("long output: error of %d bytes", len(err.Error()))
	}
	for _, name := range []string{"winkube-no-such-program", filepath.Join(t.TempDir(), "absent")} {
		if _, err := r.Run(t.Context(), nil, name, "-x"); !errors.Is(err, ErrNotFound) || !strings.HasPrefix(err.Error(), "cannot run ") {
			t.Errorf("%s: %v, want ErrNotFound", name, err)
		}
	}
	if _, err := r.Run(t.Context(), nil, filepath.Join("bin", "x")); err == nil || !strings.Contains(err.Error(), "relative path") {
		t.Errorf("relative path: %v", err)
	}
}

func TestRunCtx(t *testing.T) {
	r, exe := child(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := r.Run(ctx, nil, exe, "hang"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the deadline", err)
	}
}

// TestFamily: descendants of a program are killed with it.
func TestFamily(t *testing.T) {
	_, exe := child(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	mark := fmt.Sprintf("WINKUBE_FAMILY=%d", os.Getpid())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := NewFamily(os.Environ(), mark).Run(ctx, nil, exe, "spawn", listener.Addr().String())
		ended <- err
		_ = listener.Close()
	}()
	var conns []net.Conn
	for range 2 {
		conn, err := listener.Accept()
		if err != nil {
			t.Fatalf("%v; the program: %v", err, <-ended)
		}
		conns = append(conns, conn)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was cancelled", err)
	}
	for _, conn := range conns {
		_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("one of the family lives on: %v", err)
		}
		_ = conn.Close()
	}
	if err := EndFamily(mark); err != nil {
		t.Errorf("of a family that is no more: %v", err)
	}
}

func TestLookup(t *testing.T) {
	dirs := searchDirs()
	if len(dirs) == 0 {
		t.Fatal("nowhere to look for programs")
	}
	r := New().(*runner)
	name := "sort"
	if runtime.GOOS == "windows" {
		name = "cmd" // Wine has no sort.exe
	}
	path, err := r.look(name)
	if err != nil || !filepath.IsAbs(path) {
		t.Fatalf("%q, %v", path, err)
	}
	r.dirs = nil // a second lookup must not search again
	if again, err := r.look(name); err != nil || again != path {
		t.Errorf("second look: %q, %v", again, err)
	}
}
