package docker

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/winkube/winkube/pkg/docker/dockertest"
)

// programPath is the path of the test binary in the image for real engines. Started under that name, it acts as the program.
const programPath = "/program"

func TestMain(m *testing.M) {
	if len(os.Args) > 0 && os.Args[0] == programPath {
		signals := make(chan os.Signal, 16)
		signal.Notify(signals, syscall.SIGTERM)
		names := make(chan string, 16)
		go func() {
			for range signals {
				names <- "TERM"
			}
		}()
		os.Exit(program(&dockertest.Process{Args: os.Args, Env: os.Environ(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Signals: names}))
	}
	os.Exit(m.Run())
}

// findProgram returns the fake's function for argv.
func findProgram(argv []string) dockertest.Program {
	if argv[0] != programPath {
		return nil
	}
	return program
}

// program runs in these tests' containers, in the fake and for real: its first argument selects the behavior.
func program(p *dockertest.Process) int {
	verb, args := "pause", []string(nil)
	if len(p.Args) > 1 {
		verb, args = p.Args[1], p.Args[2:]
	}
	switch verb {
	case "pause": // prints args and waits for TERM, then says good-bye
		for _, arg := range args {
			_, _ = fmt.Fprintln(p.Stdout, arg)
		}
		code := dockertest.Pause(p)
		_, _ = fmt.Fprintln(p.Stdout, "bye")
		return code
	case "stubborn": // only KILL ends it
		for {
			select {
			case <-p.Signals:
			case <-p.Killed:
				return 137
			}
		}
	case "family": // starts a stubborn child, and is stubborn itself; for real only
		files := []*os.File{os.Stdin, os.Stdout, os.Stderr}
		if _, err := os.StartProcess(programPath, []string{programPath, "stubborn", args[0]}, &os.ProcAttr{Files: files}); err != nil {
			return 1
		}
		for { // only KILL ends it
			<-p.Signals
		}
	case "exit": // prints the rest of args, on stderr, and exits
		for _, arg := range args[1:] {
			_, _ = fmt.Fprintln(p.Stderr, arg)
		}
		code, _ := strconv.Atoi(args[0])
		return code
	case "both": // one line on each stream
		_, _ = fmt.Fprintln(p.Stdout, "to stdout")
		_, _ = fmt.Fprintln(p.Stderr, "to stderr")
	case "cat": // copies its input, and reports its end
		_, _ = io.Copy(p.Stdout, p.Stdin)
		_, _ = fmt.Fprintln(p.Stdout, "end of input")
	case "env":
		for _, line := range p.Env {
			if name, value, _ := strings.Cut(line, "="); name == args[0] {
				_, _ = fmt.Fprintln(p.Stdout, value)
			}
		}
	case "flood": // this many bytes
		n, _ := strconv.Atoi(args[0])
		_, _ = io.WriteString(p.Stdout, strings.Repeat("x", n))
	case "fill": // a file of this many bytes, then like pause
		n, _ := strconv.Atoi(args[1])
		if err := os.WriteFile(args[0], make([]byte, n), 0o600); err != nil {
			return 1
		}
		_, _ = fmt.Fprintln(p.Stdout, "filled")
		return dockertest.Pause(p)
	case "count": // numbered lines, every thousandth of them long
		n, _ := strconv.Atoi(args[0])
		for i := range n {
			line := strconv.Itoa(i)
			if i%1000 == 999 {
				line += " " + strings.Repeat("x", 40_000)
			}
			_, _ = fmt.Fprintln(p.Stdout, line)
		}
	case "serve": // answers "hello" on a port of the loopback address
		l, err := net.Listen("tcp", "127.0.0.1:"+args[0])
		if err != nil {
			_, _ = fmt.Fprintln(p.Stderr, err)
			return 1
		}
		_, _ = fmt.Fprintln(p.Stdout, "serving")
		for {
			conn, err := l.Accept()
			if err != nil {
				return 1
			}
			_, _ = io.WriteString(conn, "hello")
			conn.Close()
		}
	case "sizes": // prints the size of its terminal after each change, fake only
		for {
			select {
			case size := <-p.Resized:
				_, _ = fmt.Fprintf(p.Stdout, "%dx%d\n", size[1], size[0])
			case <-p.Killed:
				return 137
			case <-p.Signals:
				return 0
			}
		}
	}
	return 0
}
