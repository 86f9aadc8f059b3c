package connect

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/proxy"
)

// logged returns the log lines of do, without time and source.
func logged(do func()) (lines []string) {
	var out bytes.Buffer
	klog.LogToStderr(false)
	klog.SetOutput(&out)
	do()
	klog.Flush()
	klog.SetOutput(io.Discard)
	klog.LogToStderr(true)
	for line := range strings.Lines(out.String()) {
		_, text, _ := strings.Cut(strings.TrimSpace(line), "] ")
		lines = append(lines, text)
	}
	return lines
}

// refusal is a way in which a host refuses.
type refusal struct {
	name   string
	do     func() error // in a process with separate mounts
	before bool         // the programs of a previous proxy are attached
	want   string       // the log line, which ends with the kernel's message
}

const relayed = `"Relaying all Services: the kernel cannot decide for clients when they connect" reason="`

var refusals = []refusal{
	{"no cgroup2", func() error {
		for {
			root, err := RootCgroup()
			if err != nil {
				return nil
			}
			if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
				return err
			}
		}
	}, false, relayed + `no cgroup2 file system is mounted"`},
	{"read-only bpf file system", func() error {
		if err := unix.Mount("none", bpffs, "bpf", 0, ""); err != nil {
			return err
		}
		return unix.Mount("none", bpffs, "bpf", unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}, true, relayed + `mkdir /sys/fs/bpf/winkube-proxy: read-only file system"`},
	{"no right to use BPF", func() error {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var rights [2]unix.CapUserData
		if err := unix.Capget(&header, &rights[0]); err != nil {
			return err
		}
		for i := range rights {
			rights[i].Effective = 0
		}
		rights[0].Effective = 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_SYS_PTRACE
		return unix.Capset(&header, &rights[0])
	}, false, relayed + `BPF map affinity: creating map: map create: operation not permitted`},
	{"a program that the verifier refuses", func() error {
		hooks[len(hooks)-2].program = func(handles) asm.Instructions { return asm.Instructions{asm.Return()} }
		return nil
	}, true, relayed + `BPF program connect4: load program: permission denied: 0: (95) exit: R0 !read_ok`},
	{"a hook that the kernel does not have", func() error {
		hooks[len(hooks)-2].attach = ebpf.AttachLSMMac
		return nil
	}, true, relayed + `BPF program connect4: load program: invalid argument"`},
}

// refusalCase names TestRefusal's refusal, and refusalCgroup its cgroup.
const refusalCase, refusalCgroup = "WINKUBE_REFUSAL", "WINKUBE_REFUSAL_CGROUP"

// TestRefusal is the proxy of TestFallsBack, in a separate program.
func TestRefusal(t *testing.T) {
	i := slices.IndexFunc(refusals, func(r refusal) bool { return r.name == os.Getenv(refusalCase) })
	if i < 0 {
		t.Skip("TestFallsBack runs it")
	}
	runtime.LockOSThread() // privileges belong to a thread
	b := New(NewKernel(os.Getenv(refusalCgroup)), Limits{})
	if err := refusals[i].do(); err != nil {
		t.Fatal(err)
	}
	table := tableOf(route("a 10.96.0.1:80 10.1.0.3:80"))
	for _, line := range logged(func() {
		for range 3 {
			if err := b.Sync(t.Context(), table, nil); err != nil {
				klog.Info(err)
			}
		}
	}) {
		fmt.Println("LOG", line)
	}
}

// TestFallsBack: if the kernel refuses, one line says why, and no program stays attached to the cgroup, so that the
// relay has all fronts. That includes programs of a previous proxy, which would use stale data.
func TestFallsBack(t *testing.T) {
	h := newHost(t)
	h.serve(t, h.pods, "10.1.0.2:80")
	for _, r := range refusals {
		h.to(t, route("a 10.96.0.1:80 10.1.0.2:80"))
		expect(t, "decided before", ask("tcp", "10.96.0.1:80", nil), "10.1.0.2:80 10.1.0.1")
		if !r.before {
			h.to(t)
		}
		h.Balancer.Close()
		cgroup := h.cgroup
		if r.name == "no cgroup2" {
			cgroup = ""
		}
		p := startChild(t, "TestRefusal", &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}, refusalCase+"="+r.name, refusalCgroup+"="+cgroup)
		out, err := io.ReadAll(p.out)
		if ended, failed := p.process.Wait(); err != nil || failed != nil || !ended.Success() {
			t.Fatalf("%s: %v, %v, %v: %s", r.name, err, failed, ended, out)
		}
		var lines []string
		for line := range strings.Lines(string(out)) {
			if text, ok := strings.CutPrefix(line, "LOG "); ok {
				lines = append(lines, strings.TrimSpace(text))
			}
		}
		if len(lines) != 1 || !strings.HasPrefix(lines[0], r.want) {
			t.Errorf("%s: logged\n%s\nwant one line\n%s", r.name, out, r.want)
		} else {
			t.Log(lines[0])
		}
		expect(t, r.name+": left to the relay, which is not here", ask("tcp", "10.96.0.1:80", nil), unix.ENETUNREACH.Error())
		h.start(t) // the cause is gone
		h.to(t, route("a 10.96.0.1:80 10.1.0.2:80"))
		expect(t, "decided again", ask("tcp", "10.96.0.1:80", nil), "10.1.0.2:80 10.1.0.1")
	}
}

// TestFullMap: fronts without room in a map are relayed, with one log line, and those in the map stay. The others
// follow when there is room.
func TestFullMap(t *testing.T) {
	h := newHost(t)
	h.serve(t, h.pods, "10.1.0.2:80")
	served := []proxy.Route{route("a 10.96.0.1:80 10.1.0.2:80")}
	h.to(t, served...)
	fill := h.kernel.maps["fronts"]
	keys, values := make([]Key, 0, MaxFronts), make([]Front, MaxFronts)
	for n := range uint32(MaxFronts - 1) {
		key := Key{Protocol: 99, Port: 1}
		binary.BigEndian.PutUint32(key.Addr[:], n)
		keys = append(keys, key)
	}
	if _, err := fill.BatchUpdate(keys, values[:len(keys)], &ebpf.BatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for n := range 9 {
		served = append(served, route(fmt.Sprintf("b%d 10.96.0.2:8%d 10.1.0.2:80", n, n)))
	}
	table := tableOf(served...)
	lines := logged(func() {
		for n := range 9 {
			apply(t, h.Balancer, table, name(fmt.Sprintf("b%d", n)))
		}
		apply(t, h.Balancer, table)
	})
	const want = `"Relaying some Services: the kernel rejected their entries in the BPF maps" fronts=1 such as=["TCP 10.96.0.2:80"] reason="put front: `
	if len(lines) != 1 || !strings.HasPrefix(lines[0], want) {
		t.Errorf("logged %q, want one line %s", lines, want)
	} else {
		t.Log(lines[0])
	}
	expect(t, "one that is in the map", ask("tcp", "10.96.0.1:80", nil), "10.1.0.2:80 10.1.0.1")
	expect(t, "one that is not: left to the relay, which is not here", ask("tcp", "10.96.0.2:80", nil), unix.ENETUNREACH.Error())
	left, err := h.kernel.Read()
	if err != nil || len(left.Slots) != 1 || len(left.Members) != 1 {
		t.Errorf("of what was refused the maps keep %d slots and %d endpoints, %v", len(left.Slots)-1, len(left.Members)-1, err)
	}
	if _, err := fill.BatchDelete(keys, &ebpf.BatchOptions{}); err != nil {
		t.Fatal(err)
	}
	apply(t, h.Balancer, table)
	expect(t, "when there is room", ask("tcp", "10.96.0.2:88", nil), "10.1.0.2:80 10.1.0.1")
}

// TestLargeTable: fronts beyond the maps' size are relayed, with one log line.
func TestLargeTable(t *testing.T) {
	h := newHost(t)
	h.serve(t, h.pods, "10.1.0.2:80")
	h.limits = Limits{Fronts: 1, Endpoints: 1}
	lines := logged(func() {
		for range 3 {
			h.to(t, route("a 10.96.0.1:80 10.1.0.2:80"), route("b 10.96.0.2:80 10.1.0.2:80"))
		}
	})
	const want = `"Relaying some Services: the BPF maps are full" fronts=1 such as=["TCP 10.96.0.2:80"] most fronts=1 most endpoints=1`
	if i := slices.Index(lines, want); i < 0 || slices.Contains(lines[i+1:], want) {
		t.Errorf("logged %q, want once %s", lines, want)
	}
	expect(t, "one that fits", ask("tcp", "10.96.0.1:80", nil), "10.1.0.2:80 10.1.0.1")
	expect(t, "one that does not: left to the relay, which is not here", ask("tcp", "10.96.0.2:80", nil), unix.ENETUNREACH.Error())
}

// TestDetachedIsTold: if a privileged pod detaches a program, the next full comparison attaches it again, with a log
// line and a count. Nothing else changes until then, and never for other programs' links at the hook.
func TestDetachedIsTold(t *testing.T) {
	h := newHost(t)
	h.serve(t, h.pods, "10.1.0.2:80")
	h.to(t, route("a 10.96.0.1:80 10.1.0.2:80"))
	theirs, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "wk_connected", Type: ebpf.CGroupSockAddr, AttachType: connectHook.attach, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	other, err := link.AttachCgroup(link.CgroupOptions{Path: h.cgroup, Attach: connectHook.attach, Program: theirs})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	l, err := link.LoadPinnedLink(h.kernel.pin(connectHook), nil)
	if err == nil {
		err = errors.Join(l.Detach(), l.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	expect(t, "meanwhile left to the relay, which is not here", ask("tcp", "10.96.0.1:80", nil), unix.ENETUNREACH.Error())
	lines := logged(func() {
		apply(t, h.Balancer, h.table, name("a")) // a change does not check
		apply(t, h.Balancer, h.table)
		apply(t, h.Balancer, h.table)
	})
	const want = `"Reattached the BPF program for Services: something had detached it. Check what else manages BPF programs on this host" hook="connect4"`
	if len(lines) != 1 || lines[0] != want {
		t.Errorf("logged %q, want one line %s", lines, want)
	}
	var count dto.Metric
	if err := h.metrics.attached.Write(&count); err != nil || count.Counter.GetValue() != 1 {
		t.Errorf("counted %v, %v, want one", count.Counter.GetValue(), err)
	}
	expect(t, "again", ask("tcp", "10.96.0.1:80", nil), "10.1.0.2:80 10.1.0.1")
	if info, err := other.Info(); err != nil || info.Cgroup().CgroupId != h.kernel.inode {
		t.Errorf("the other program's link was changed: %v, %v", info, err)
	}
}

// TestNextLayout: a proxy with another layout of the maps keeps the previous proxy's programs until its own maps are
// filled.
func TestNextLayout(t *testing.T) {
	h := newHost(t)
	h.serve(t, h.pods, "10.1.0.2:80")
	h.serve(t, h.pods, "10.1.0.3:80")
	h.to(t, route("a 10.96.0.1:80 10.1.0.2:80"))
	h.Balancer.Close()
	defer func(before string) { layout = before }(layout)
	layout = "test"
	h.start(t)
	if err := h.kernel.Open(); err != nil {
		t.Fatal(err)
	}
	expect(t, "while maps are filled", ask("tcp", "10.96.0.1:80", nil), "10.1.0.2:80 10.1.0.1")
	h.to(t, route("a 10.96.0.1:80 10.1.0.3:80"))
	expect(t, "afterwards", ask("tcp", "10.96.0.1:80", nil), "10.1.0.3:80 10.1.0.1")
	if entries, err := os.ReadDir(h.kernel.dir); err != nil || len(entries) != len(hooks)+1 {
		t.Errorf("the other layout is left: %v, %v", entries, err)
	}
}

// TestAttachFails: what cannot be taken over is removed, and the relay serves.
func TestAttachFails(t *testing.T) {
	k := newFakeKernel()
	k.attachErr = errors.New("operation\nnot permitted")
	b := newBalancer(t, k, Limits{})
	table := tableOf(route("a 10.96.0.1:80 10.1.0.1:80"))
	lines := logged(func() {
		apply(t, b, table)
		apply(t, b, table)
	})
	expect(t, "logged", lines[len(lines)-1], relayed+`operation not permitted"`)
	if k.opened || len(k.Fronts) > 0 {
		t.Error("what could not be attached is left")
	}
	k.attachErr = nil
	if err := b.Sync(context.Background(), table, nil); err != nil {
		t.Error(err)
	}
	k.expect(t, "TCP 10.96.0.1:80 affinity 0: 10.1.0.1:80")
}
