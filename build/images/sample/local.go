package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func env([]string) error {
	for _, v := range os.Environ() {
		fmt.Println(v)
	}
	return nil
}

func cat(args []string) error {
	for _, path := range args {
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if _, err := os.Stdout.Write(data); err != nil {
			return err
		}
	}
	return nil
}

func list(args []string) error {
	if len(args) == 0 {
		args = []string{"."}
	}
	for _, dir := range args {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			info, err := entry.Info()
			if err != nil {
				return err
			}
			fmt.Printf("%s %8d %s\n", info.Mode(), info.Size(), entry.Name())
		}
	}
	return nil
}

func write(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("write: want a file and a text")
	}
	return os.WriteFile(args[0], []byte(strings.Join(args[1:], " ")+"\n"), 0o644)
}

func fill(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("fill: want a file and a number of bytes")
	}
	size, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return err
	}
	file, err := os.Create(args[0])
	if err != nil {
		return err
	}
	block := bytes.Repeat([]byte("fill"), 16<<10)
	for size > 0 && err == nil {
		var n int
		n, err = file.Write(block[:min(size, int64(len(block)))])
		size -= int64(n)
	}
	return errors.Join(err, file.Close())
}

// hold writes to every page of the memory that it takes: what was never written to does not count.
func hold(args []string) error {
	n, err := number("hold", args)
	if err != nil {
		return err
	}
	kept := make([]byte, n)
	for i := 0; i < n; i += os.Getpagesize() {
		kept[i] = 1
	}
	fmt.Println("held", n)
	err = sleep(nil)
	runtime.KeepAlive(kept)
	return err
}

func threads(args []string) error {
	n, err := number("threads", args)
	if err != nil {
		return err
	}
	for range n {
		go func() {
			runtime.LockOSThread()
			select {}
		}()
	}
	return sleep(nil)
}

func number(command string, args []string) (int, error) {
	if len(args) != 1 {
		return 0, fmt.Errorf("%s: want a number", command)
	}
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%s: %q: want a number of 0 or more", command, args[0])
	}
	return n, nil
}

// longLine is how long every 10000th line of count is: more than engines accept in one piece.
const longLine = 40_000

func count(args []string) error {
	var n, width int
	for i, number := range []*int{&n, &width} {
		if i >= len(args) {
			break
		}
		var err error
		if *number, err = strconv.Atoi(args[i]); err != nil {
			return err
		}
	}
	out := bufio.NewWriterSize(os.Stdout, 64<<10)
	for i := range n {
		w := width
		if i%10_000 == 9999 {
			w = longLine
		}
		fmt.Fprintf(out, "%-*d|\n", w, i)
	}
	return out.Flush()
}

// appendLine adds a line by one write, so that lines of several programs do not mix.
func appendLine(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("append: want a file and a text")
	}
	file, err := os.OpenFile(args[0], os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	if _, err := file.WriteString(strings.Join(args[1:], " ") + "\n"); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

func echoArgs(args []string) error {
	fmt.Println(strings.Join(args, " "))
	return nil
}

func hostname([]string) error {
	name, err := os.Hostname()
	fmt.Println(name)
	return err
}

// told returns a channel that closes when the program is asked to end.
func told() <-chan struct{} {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	go func() { <-signals; close(done) }()
	return done
}

func sleep(args []string) error {
	var over <-chan time.Time
	if len(args) > 0 {
		d, err := duration(args[0])
		if err != nil {
			return err
		}
		over = time.After(d)
	}
	select {
	case <-over:
	case <-told():
	}
	return nil
}

// duration reads 1m30s, and 90 as seconds.
func duration(text string) (time.Duration, error) {
	if seconds, err := strconv.Atoi(text); err == nil {
		return time.Duration(seconds) * time.Second, nil
	}
	return time.ParseDuration(text)
}

func fail(args []string) error {
	code := 1
	if len(args) > 0 {
		var err error
		if code, err = strconv.Atoi(args[0]); err != nil {
			return err
		}
	}
	return exitCode(code)
}

// shell runs the commands of this program, one per line. With -c it runs its argument, commands separated by semicolons.
func shell(args []string) error {
	if len(args) > 1 && args[0] == "-c" {
		var err error
		for line := range strings.SplitSeq(args[1], ";") {
			err = runLine(line)
		}
		return err
	}
	prompt := ""
	if info, err := os.Stdin.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		prompt = "# "
	}
	lines := bufio.NewScanner(os.Stdin)
	for fmt.Print(prompt); lines.Scan(); fmt.Print(prompt) {
		if strings.TrimSpace(lines.Text()) == "exit" {
			return nil
		}
		if err := runLine(lines.Text()); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	return lines.Err()
}

func runLine(line string) error {
	words := strings.Fields(line)
	switch {
	case len(words) == 0:
		return nil
	case words[0] == "echo":
		words[0] = "echoargs"
	case words[0] == "exit":
		return fail(words[1:])
	case words[0] == "/sample" && len(words) > 1:
		words = words[1:]
	}
	return dispatch(words)
}
