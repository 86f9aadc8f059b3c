// Command cluster starts a two-node cluster of our programs on this machine, checks that it works, and removes it: `make up`,
// `make down`. The code is in test/lab and test/lab/check.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/winkube/winkube/test/lab"
	"github.com/winkube/winkube/test/lab/check"
)

const usage = `cluster up            build what is missing, start or repair the cluster, deploy and check the samples
cluster build         build what up, the tests and upstream's suite need, and start nothing
cluster down          remove every trace of the cluster
cluster status        list the cluster's processes and their logs
cluster check         check the samples again
cluster bench         run the benchmarks, as make bench does without the proxy's control plane
cluster kubeconfig    print the command that sets up kubectl in a shell
cluster exec HOST -- COMMAND...  run a command in a host's network: control, node1, node2
cluster restart HOST PROCESS     stop and start a process: kubelet, proxy, dockerd, kube-apiserver, ...
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		code := 1
		if exit, ok := err.(*exec.ExitError); ok { // the program has printed its own error
			code = exit.ExitCode()
		} else if step := new(lab.StepError); !errors.As(err, &step) {
			fmt.Fprintln(os.Stderr, "cluster:", err)
		}
		stop()
		os.Exit(code)
	}
}

// request is a valid command line.
type request struct {
	verb string
	host string   // for exec and restart
	argv []string // exec's command, restart's process, or flags
}

// parse validates a command line without running it.
func parse(args []string) (request, error) {
	if len(args) == 0 {
		return request{verb: "help"}, nil
	}
	r := request{verb: args[0]}
	rest := args[1:]
	switch r.verb {
	case "help", "build", "down", "status", "check", "bench", "kubeconfig":
		if len(rest) > 0 {
			return r, fmt.Errorf("%s: unexpected arguments %q: run go run ./hack/cluster %s without them", r.verb, rest, r.verb)
		}
	case "up", "gateway":
		r.argv = rest
	case "exec":
		if len(rest) > 1 && rest[1] == "--" {
			rest = slices.Delete(slices.Clone(rest), 1, 2)
		}
		if len(rest) < 2 {
			return r, errors.New("exec: want a host and a command, such as: go run ./hack/cluster exec node1 -- ip route")
		}
		r.host, r.argv = rest[0], rest[1:]
	case "restart":
		if len(rest) != 2 {
			return r, errors.New("restart: want a host and a process, such as: go run ./hack/cluster restart node1 kubelet")
		}
		r.host, r.argv = rest[0], rest[1:]
	default:
		return r, fmt.Errorf("%s: unknown command; the commands are:\n%s", r.verb, strings.TrimRight(usage, "\n"))
	}
	return r, nil
}

func run(ctx context.Context, args []string) error {
	r, err := parse(args)
	if err != nil {
		return err
	}
	if r.verb == "help" {
		fmt.Print(usage)
		return nil
	}
	root, err := lab.FindRoot()
	if err != nil && r.verb != "gateway" {
		return err
	}
	c := lab.New(root, os.Stdout)
	switch r.verb {
	case "up":
		return up(ctx, c, r.argv)
	case "build":
		return c.BuildAll(ctx)
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
		return execute(ctx, c, r)
	case "restart":
		return restart(ctx, c, r)
	}
	return gateway(ctx, r.argv)
}

func up(ctx context.Context, c *lab.Cluster, args []string) error {
	flags := pflag.NewFlagSet("up", pflag.ContinueOnError)
	agents := flags.Bool("agents", true, "start our kubelet and proxy and deploy the samples; false: only the control plane and the engines")
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
	fmt.Printf("\nTo use the cluster, run:\n\n%s\n", c.ShellLine())
	return nil
}

func host(c *lab.Cluster, name string) (*lab.Host, error) {
	if h := c.Node(name); h != nil {
		return h, nil
	}
	return nil, fmt.Errorf("%s: no such host: want control, node1 or node2", name)
}

func execute(ctx context.Context, c *lab.Cluster, r request) error {
	h, err := host(c, r.host)
	if err != nil {
		return err
	}
	cmd := h.Command(ctx, r.argv...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "DOCKER_HOST=unix://"+h.EngineSocket(), "PATH="+c.Tools+":"+os.Getenv("PATH"), "KUBECONFIG="+c.Kubeconfig())
	return cmd.Run()
}

func restart(ctx context.Context, c *lab.Cluster, r request) error {
	h, err := host(c, r.host)
	if err != nil {
		return err
	}
	name := r.argv[0]
	if !slices.Contains(h.ProcessNames(), name) {
		return fmt.Errorf("%s: no such process on %s: want one of %s", name, r.host, strings.Join(h.ProcessNames(), ", "))
	}
	return h.Process(name).Restart(ctx)
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
