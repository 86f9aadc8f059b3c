// Command cluster brings a two-node cluster of our binaries up on this machine, shows that it works, and takes it down: `make up`,
// `make down`. What it does is in test/lab and test/lab/check.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/lab/check"
)

const usage = `cluster up            build what is missing, start or repair the cluster, serve the samples, check them
cluster down          remove every trace of it
cluster status        list its processes
cluster check         print the table of checks again
cluster bench         measure the kubelet beside the bare engine
cluster kubeconfig    print the line that makes kubectl work in a shell
cluster exec HOST COMMAND...   run a command in a host's network: control, node1, node2
cluster restart HOST PROCESS   stop and start a process: kubelet, proxy, dockerd, kube-apiserver, ...
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		code := 1
		if exit, ok := err.(*exec.ExitError); ok { // of a program that printed for itself
			code = exit.ExitCode()
		} else if step := new(lab.StepError); !errors.As(err, &step) {
			fmt.Fprintln(os.Stderr, "cluster:", err)
		}
		stop()
		os.Exit(code)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 || args[0] == "help" {
		fmt.Print(usage)
		return nil
	}
	root, err := lab.FindRoot()
	if err != nil && args[0] != "gateway" {
		return err
	}
	c := lab.New(root, os.Stdout)
	switch args[0] {
	case "up":
		return up(ctx, c, args[1:])
	case "down":
		return c.Down(ctx)
	case "status":
		c.Status(os.Stdout)
		return nil
	case "check":
		return check.Run(ctx, c, os.Stdout)
	case "bench":
		cmd := exec.CommandContext(ctx, "go", "run", "./test/bench")
		cmd.Dir, cmd.Stdout, cmd.Stderr = root, os.Stdout, os.Stderr
		return cmd.Run()
	case "kubeconfig":
		fmt.Println(c.ShellLine())
		return nil
	case "exec":
		return execute(ctx, c, args[1:])
	case "restart":
		return restart(ctx, c, args[1:])
	case "gateway":
		return gateway(ctx, args[1:])
	}
	return fmt.Errorf("%s: no such command; there are:\n%s", args[0], strings.TrimRight(usage, "\n"))
}

func up(ctx context.Context, c *lab.Cluster, args []string) error {
	flags := pflag.NewFlagSet("up", pflag.ContinueOnError)
	agents := flags.Bool("agents", true, "with our kubelet and proxy, and the samples; else only the parts around them")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if !*agents {
		if err := c.UpWithoutAgents(ctx); err != nil {
			return err
		}
		fmt.Printf("\n%s\n", c.ShellLine())
		return nil
	}
	if err := c.Up(ctx); err != nil {
		return err
	}
	if err := c.Step(ctx, "samples", func(ctx context.Context) error { return check.Apply(ctx, c) }); err != nil {
		return err
	}
	if err := check.Run(ctx, c, os.Stdout); err != nil {
		return err
	}
	fmt.Printf("\nTo use it:\n\n%s\n", c.ShellLine())
	return nil
}

func host(c *lab.Cluster, name string) (*lab.Host, error) {
	if h := c.Node(name); h != nil {
		return h, nil
	}
	return nil, fmt.Errorf("%s: no such host: control, node1 or node2", name)
}

func execute(ctx context.Context, c *lab.Cluster, args []string) error {
	if len(args) < 2 {
		return errors.New("exec: want a host and a command")
	}
	h, err := host(c, args[0])
	if err != nil {
		return err
	}
	cmd := h.Command(ctx, args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "DOCKER_HOST=unix://"+h.EngineSocket(), "PATH="+c.Tools+":"+os.Getenv("PATH"), "KUBECONFIG="+c.Kubeconfig())
	return cmd.Run()
}

func restart(ctx context.Context, c *lab.Cluster, args []string) error {
	if len(args) != 2 {
		return errors.New("restart: want a host and a process")
	}
	h, err := host(c, args[0])
	if err != nil {
		return err
	}
	for _, name := range h.ProcessNames() {
		if name == args[1] {
			return h.Process(name).Restart(ctx)
		}
	}
	return fmt.Errorf("%s: no such process on %s: %s", args[1], args[0], strings.Join(h.ProcessNames(), ", "))
}

func gateway(ctx context.Context, args []string) error {
	flags := pflag.NewFlagSet("gateway", pflag.ContinueOnError)
	kubeconfig := flags.String("kubeconfig", "", "credentials to watch Nodes with")
	to := flags.String("to", "", "address of the API server")
	if err := flags.Parse(args); err != nil {
		return err
	}
	listener, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return fmt.Errorf("cannot use the socket that the caller should hand over as descriptor 3: %w", err)
	}
	return lab.Gateway(ctx, listener, *to, *kubeconfig)
}
