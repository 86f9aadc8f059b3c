package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/winkube/winkube/test/output"
)

// Machine is a virtual machine beside the hosts, with another kernel and systemd. QEMU emulates its processors: it is some ten times slower than a
// host.
type Machine struct {
	Name    string
	Addr    netip.Addr
	Dir     string // of hack/vm-image.sh
	Console string // file with what the kernel and systemd print

	cluster *Cluster
	qemu    *exec.Cmd
	ended   chan error
}

// NewMachine returns the virtual machine of the cluster's switch, whose disk is a copy of the one in dir. It does not start it.
func (c *Cluster) NewMachine(dir string) *Machine {
	return &Machine{Name: "vm", Addr: netip.MustParseAddr("172.30.0.30"), Dir: dir, Console: filepath.Join(dir, "console.log"), cluster: c}
}

func (m *Machine) disk() string { return filepath.Join(m.Dir, "used.img") }

// second is the machine's second disk, which is empty at first.
func (m *Machine) second() string { return filepath.Join(m.Dir, "second.img") }

const secondSize = 1 << 30

// Create makes the machine's disks and its network card.
func (m *Machine) Create(ctx context.Context) error {
	if _, err := run(ctx, "cp", "--sparse=always", filepath.Join(m.Dir, "disk.img"), m.disk()); err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(m.second(), nil, 0o600), os.Truncate(m.second(), secondSize)); err != nil {
		return err
	}
	if _, err := run(ctx, "ip", "-n", switchNamespace, "link", "show", m.Name); err != nil {
		if err := ip(ctx, switchNamespace, "tuntap add dev "+m.Name+" mode tap"); err != nil {
			return err
		}
	}
	return errors.Join(ip(ctx, switchNamespace, "link set "+m.Name+" master br0 up"), os.RemoveAll(m.Console))
}

// Start turns the machine on.
func (m *Machine) Start() error {
	console, err := os.OpenFile(m.Console, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer console.Close()
	m.qemu = exec.Command("ip", "netns", "exec", switchNamespace, "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "3072", "-nodefaults", "-display", "none",
		"-kernel", filepath.Join(m.Dir, "vmlinuz"), "-initrd", filepath.Join(m.Dir, "initrd.img"), "-append", "root=/dev/vda rw console=ttyS0 quiet mitigations=off panic=1",
		"-drive", "if=virtio,format=raw,file="+m.disk(), "-drive", "if=virtio,format=raw,file="+m.second(), "-netdev", "tap,id=lab,script=no,downscript=no,ifname="+m.Name, "-device", "virtio-net-pci,netdev=lab",
		"-device", "virtio-rng-pci", "-serial", "stdio")
	m.qemu.Stdout, m.qemu.Stderr = console, console
	if err := m.qemu.Start(); err != nil {
		return err
	}
	m.ended = make(chan error, 1)
	go func() { m.ended <- m.qemu.Wait() }()
	return nil
}

// PowerOff cuts the machine's power: what its programs have not written to the disk is lost.
func (m *Machine) PowerOff() error {
	if m.qemu == nil {
		return nil
	}
	if err := m.qemu.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-m.ended
	m.qemu = nil
	return nil
}

// Ended returns when the machine has turned itself off, or with an error when ctx ends.
func (m *Machine) Ended(ctx context.Context) error {
	select {
	case err := <-m.ended:
		m.qemu = nil
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Boot returns the id of the boot that the machine is in, once systemd has started all units.
func (m *Machine) Boot(ctx context.Context) (id string, err error) {
	var last error
	err = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		// It fails with "degraded" if a unit failed; the caller sees that by what it needs.
		id, last = m.Run(ctx, "systemctl is-system-running --wait >/dev/null || true; cat /proc/sys/kernel/random/boot_id")
		return last == nil, nil
	})
	if err != nil {
		return "", fmt.Errorf("the machine does not answer: %w", errors.Join(err, last))
	}
	return strings.TrimSpace(id), nil
}

// Run runs a line in the machine's shell and returns what it printed.
func (m *Machine) Run(ctx context.Context, line string) (stdout string, err error) {
	return m.run(ctx, "", line)
}

// Send writes a file of this host to a path in the machine.
func (m *Machine) Send(ctx context.Context, file, path string) error {
	_, err := m.run(ctx, file, "cat >"+path)
	return err
}

// Lend has the machine's connections to addr, on its loopback interface, arrive at that address of a host until the returned function is called.
func (m *Machine) Lend(ctx context.Context, host *Host, addr netip.AddrPort) (end func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd := host.Command(ctx, m.ssh("-N", "-o", "ExitOnForwardFailure=yes", "-R", addr.String()+":"+addr.String())...)
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, err
	}
	end = func() { cancel(); _ = cmd.Wait() }
	err = wait.PollUntilContextTimeout(ctx, time.Second, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := m.Run(ctx, fmt.Sprintf("exec 3<>/dev/tcp/%s/%d", addr.Addr(), addr.Port()))
		return err == nil, nil
	})
	if err != nil {
		end()
		return nil, fmt.Errorf("the machine does not reach %s of %s: %w", addr, host.Name, err)
	}
	return end, nil
}

// ssh returns a command line to the machine.
func (m *Machine) ssh(options ...string) []string {
	return slices.Concat([]string{"ssh", "-q", "-i", filepath.Join(m.Dir, "key"), "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=60",
		"-o", "ServerAliveInterval=10"}, options, []string{"root@" + m.Addr.String()})
}

func (m *Machine) run(ctx context.Context, stdin, line string) (stdout string, err error) {
	cmd := m.cluster.Control.Command(ctx, append(m.ssh(), line)...)
	if stdin != "" {
		f, err := os.Open(stdin)
		if err != nil {
			return "", err
		}
		defer f.Close()
		cmd.Stdin = f
	}
	said, err := output.Of(cmd)
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", line, err, said)
	}
	return said.Stdout, err
}

// HasImage reports whether the machine's engine has an image with that name and content.
func (m *Machine) HasImage(ctx context.Context, name, content string) bool {
	out, err := m.Run(ctx, "docker image inspect -f '{{index .Config.Labels \""+contentLabel+"\"}}' "+name)
	return err == nil && strings.TrimSpace(out) == content
}

// Load loads a tar file in the format of docker save into the machine's engine.
func (m *Machine) Load(ctx context.Context, path string) error {
	_, err := m.run(ctx, path, "docker load -q")
	return err
}

// Images writes the cluster's own images to files in the machine's directory, in the format of docker save, and returns their paths.
func (m *Machine) Images() (paths []string, err error) {
	for _, img := range images() {
		layer, config, err := img.parts(m.cluster.Tools)
		if err != nil {
			return nil, err
		}
		path := filepath.Join(m.Dir, img.program+".tar")
		if err := img.write(path, layer, config); err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// JoinArguments returns the cluster's address and credentials as arguments of kubelet node join.
func (c *Cluster) JoinArguments() (string, error) {
	command, err := c.JoinCommand()
	return strings.TrimPrefix(command, "kubeadm join "), err
}
