// Command sample is the only program of the sample image: a web server and the few tools that show, from inside a pod, that the
// cluster works. It needs nothing but itself.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// command is one sub-command.
type command struct {
	name, usage string
	run         func(args []string) error
}

// commands are listed by a function: the shell runs them too, so that a variable would refer to itself.
func commands() []command {
	return []command{
		{"serve", "[PORT]   web pages: / /healthz /hostname /env /headers /client-ip /file?path=; port 80", serve},
		{"echo", "[PORT]   send back every line over TCP and every packet over UDP; port 7777", echo},
		{"get", "URL   print a page; fails unless it is there", get},
		{"resolve", "NAME [--proto=udp|tcp] [--server=ADDR]   print a name's addresses", resolve},
		{"send", "udp|tcp ADDR TEXT   send a line, print the answer", send},
		{"stream", "ADDR   keep one TCP connection to an echo going, print each second how it does; ends when it breaks", stream},
		{"watch", "URL DURATION   open new connections all the time, print each interval without an answer", watch},
		{"env", "  print the environment", env},
		{"cat", "FILE...   print files", cat},
		{"ls", "[DIR...]   list directories", list},
		{"write", "FILE TEXT   write a file", write},
		{"fill", "FILE BYTES   write a file of that size", fill},
		{"burrow", "DIR DEPTH BYTES   write a file so deep below a directory that no path leads to it", burrow},
		{"litter", "DIR N   make so many empty files", litter},
		{"hide", "FILE BYTES   write a file, remove it and keep it open until told to end", hide},
		{"hoard", "ADDR N   hold so many TCP connections to a web server open, each after one request, until told to end", hoard},
		{"hold", "BYTES   take so much memory, and keep it until told to end", hold},
		{"threads", "N   start so many threads, and keep them until told to end", threads},
		{"count", "N [WIDTH]   print N numbered lines of at least WIDTH bytes, every 10000th of them long", count},
		{"append", "FILE TEXT   add a line to a file", appendLine},
		{"echoargs", "ARG...   print the arguments", echoArgs},
		{"hostname", "  print the host's name", hostname},
		{"sleep", "[DURATION]   wait; without duration until told to end", sleep},
		{"fail", "[CODE]   end with an exit code; 1", fail},
		{"shell", "  read commands from standard input and run them", shell},
	}
}

func main() {
	args := os.Args[1:]
	if filepath.Base(os.Args[0]) == "sh" {
		args = append([]string{"shell"}, args...)
	}
	if err := dispatch(args); err != nil {
		code := exitCode(1)
		if !errors.As(err, &code) {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(int(code))
	}
}

// exitCode is the error of a command that only wants to end with a code.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

func dispatch(args []string) error {
	if len(args) == 0 {
		args = []string{"help"}
	}
	for _, c := range commands() {
		if c.name == args[0] {
			return c.run(args[1:])
		}
	}
	var help strings.Builder
	for _, c := range commands() {
		fmt.Fprintf(&help, "  %s %s\n", c.name, c.usage)
	}
	if args[0] == "help" {
		fmt.Print(help.String())
		return nil
	}
	return fmt.Errorf("%s: no such command; there are:\n%s", args[0], strings.TrimRight(help.String(), "\n"))
}
