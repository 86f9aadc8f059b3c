package connect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/proxy"
)

// host belongs to one test: a cgroup that contains the test, and an isolated network namespace. Endpoints are in
// another one, behind eth0.
type host struct {
	*Balancer
	kernel *linuxKernel
	cgroup string
	own    netns.NsHandle
	pods   netns.NsHandle
	table  *proxy.Table
}

// inCgroup moves the test into a new cgroup of version 2 until it ends; sockets belong to the cgroup in which they are
// opened.
func inCgroup(t testing.TB) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	root, err := RootCgroup()
	if err != nil {
		t.Skip(err)
	}
	dir := filepath.Join(root, fmt.Sprintf("winkube-test-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("cannot make a cgroup here: %v", err)
	}
	move := func(to string) error {
		return os.WriteFile(filepath.Join(to, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0)
	}
	t.Cleanup(func() {
		if err := errors.Join(move(root), os.Remove(dir)); err != nil {
			t.Error(err)
		}
	})
	if err := move(dir); err != nil {
		t.Skipf("cannot enter a cgroup here: %v", err)
	}
	return dir
}

// newHost skips the test, with the kernel's reason, if the programs cannot be used.
func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{cgroup: inCgroup(t), table: &proxy.Table{}}
	h.namespaces(t)
	h.start(t)
	err := h.kernel.Open()
	mayNot := errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.ENOENT) || errors.Is(err, ebpf.ErrNotSupported)
	if err != nil && !mayNot {
		t.Fatalf("%+v", err)
	}
	if err != nil {
		t.Skipf("cannot decide at connect here: %v", err)
	}
	t.Cleanup(func() { _ = NewKernel(h.cgroup).Remove() })
	return h
}

// start starts a Balancer, as the next proxy would.
func (h *host) start(t *testing.T) {
	h.kernel = NewKernel(h.cgroup).(*linuxKernel)
	b := New(h.kernel, Limits{})
	h.Balancer = b
	t.Cleanup(func() {
		if h.Balancer == b {
			b.Close()
		}
	})
}

func (h *host) namespaces(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	before, err := netns.Get()
	if err == nil {
		h.pods, err = netns.New()
	}
	if err == nil {
		h.own, err = netns.New()
	}
	if err != nil {
		t.Skipf("cannot make network namespaces here: %v", err)
	}
	t.Cleanup(func() {
		h.own.Close()
		h.pods.Close()
		if netns.Set(before) == nil {
			runtime.UnlockOSThread()
		}
		before.Close()
	})
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(h.pods)}); err != nil {
		t.Fatal(err)
	}
	for space, last := range map[netns.NsHandle]int{h.own: 1, h.pods: 2} {
		h.inside(t, space, func() error {
			_, err := command.New().Run(context.Background(), fmt.Appendf(nil, "link set lo up\nlink set eth0 up\naddr add 10.1.0.%d/24 dev eth0\naddr add fd01::%d/64 dev eth0 nodad\n", last, last), "ip", "-batch", "-")
			return err
		})
	}
	h.inside(t, h.pods, func() error {
		lines := ""
		for n := 3; n < 20; n++ {
			lines += fmt.Sprintf("addr add 10.1.0.%d/24 dev eth0\n", n)
		}
		_, err := command.New().Run(context.Background(), []byte(lines), "ip", "-batch", "-")
		return err
	})
}

// inside runs do in a network namespace.
func (h *host) inside(t *testing.T, space netns.NsHandle, do func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		defer close(done) // also if do ends the goroutine
		runtime.LockOSThread()
		err := netns.Set(space)
		if err == nil {
			err = do()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// serve answers at an address: with "server client" for each TCP connection and each UDP packet.
func (h *host) serve(t *testing.T, space netns.NsHandle, addr string) {
	t.Helper()
	h.inside(t, space, func() error {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return err
		}
		p, err := net.ListenPacket("udp", addr)
		if err != nil {
			return err
		}
		t.Cleanup(func() { l.Close(); p.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintf(c, "%s %s", addr, c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr())
				c.Close()
			}
		}()
		go func() {
			for buffer := make([]byte, 64); ; {
				_, from, err := p.ReadFrom(buffer)
				if err != nil {
					return
				}
				_, _ = p.WriteTo(fmt.Appendf(nil, "%s %s", addr, from.(*net.UDPAddr).AddrPort().Addr()), from)
			}
		}()
		return nil
	})
}

func (h *host) to(t *testing.T, routes ...proxy.Route) {
	t.Helper()
	h.table = tableOf(routes...)
	apply(t, h.Balancer, h.table)
}

// patience limits waits that succeed on any machine, however busy.
const patience = time.Minute

// ask connects from local, and returns the server's answer or the error's text.
func ask(network, addr string, local net.Addr) string {
	c, err := (&net.Dialer{Timeout: patience, LocalAddr: local}).Dial(network, addr)
	if err != nil {
		return reason(err)
	}
	defer c.Close()
	return question(c)
}

func question(c net.Conn) string {
	_ = c.SetDeadline(time.Now().Add(patience))
	if c.RemoteAddr().Network() == "udp" {
		if _, err := c.Write([]byte("?")); err != nil {
			return reason(err)
		}
	}
	buffer := make([]byte, 128)
	n, err := c.Read(buffer)
	if err != nil {
		return reason(err)
	}
	return string(buffer[:n])
}

func reason(err error) string {
	for _, one := range []error{unix.ECONNREFUSED, unix.ENETUNREACH, unix.ECONNABORTED, unix.EPERM, os.ErrDeadlineExceeded} {
		if errors.Is(err, one) {
			return one.Error()
		}
	}
	return err.Error()
}

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// child is a second process of this test program, for one of its tests.
type child struct {
	process *os.Process
	in, out *os.File
}

// startChild starts a child in this thread's network namespace. It is killed when the test ends.
func startChild(t *testing.T, test string, attributes *syscall.SysProcAttr, environment ...string) *child {
	t.Helper()
	theirIn, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	process, err := os.StartProcess("/proc/self/exe", []string{os.Args[0], "-test.run=^" + test + "$", "-test.v"},
		&os.ProcAttr{Env: append(os.Environ(), environment...), Files: []*os.File{theirIn, theirOut, os.Stderr}, Sys: attributes})
	if err != nil {
		t.Fatal(err)
	}
	theirIn.Close()
	theirOut.Close()
	c := &child{process, in, out}
	t.Cleanup(c.kill)
	return c
}

func (c *child) kill() {
	_ = c.process.Kill()
	_, _ = c.process.Wait()
	c.in.Close()
	c.out.Close()
}
