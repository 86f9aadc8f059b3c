package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/network/hostnet"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
	"github.com/winkube/winkube/pkg/record"
)

const (
	// recordName is the name of everything that a recording creates.
	recordName = "winkube-record"
	// recordRange is the pod range if --pod-cidr is not set.
	recordRange = "10.244.213.0/24"
	// recordTime limits all steps together, without the time to revert them.
	recordTime = 8 * time.Minute
	// recordNetworkTime is the time limit for the pod network: a virtual switch takes over the adapter, which must then get its address again.
	recordNetworkTime = 90 * time.Second
)

// recordServices are addresses for services: they are from a documentation range, and nothing answers there.
var recordServices = []netip.Addr{netip.MustParseAddr("198.51.100.10"), netip.MustParseAddr("198.51.100.11")}

// life is one pod's life on this host, without a cluster, while all calls to the host are recorded.
type life struct {
	rec    *record.Recorder
	out    io.Writer
	facts  host.Facts
	cfg    network.Config
	pods   netip.Prefix
	image  string
	engine *docker.Engine
	run    command.Runner
	// forwarding notes where only the recording switched forwarding on. It lies beside the recording: a recording that is killed leaves it there.
	forwarding network.ForwardingFile

	manager *network.Manager
	end     func() // of the manager; nil: it does not run
	sandbox pod.Image
}

// record records this host to a new file, which only its owner can read.
func (o *hostDoctorOptions) record(out io.Writer) error {
	if o.file == "" {
		return errors.New("--record: want the name of a new file")
	}
	file, err := os.OpenFile(o.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("--record=%s: want the name of a new file: %w", o.file, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, recordTime)
	defer cancel()
	l, err := o.newLife(ctx, out)
	if err != nil {
		return errors.Join(err, file.Close(), os.Remove(o.file))
	}
	failed := l.walk(ctx)
	rec := l.rec.Recording(record.NewScrubber(l.facts.Hostname, l.own(), l.plain))
	if err := errors.Join(rec.Write(file), file.Close()); err != nil {
		return fmt.Errorf("cannot write the recording %s: %w", o.file, err)
	}
	fmt.Fprintf(out, "%d exchanges are in %s. It has no secrets; read it before you send it (docs/guides/record.md).\n", len(rec.Exchanges), o.file)
	if failed != nil {
		return fmt.Errorf("some steps failed, and their answers are recorded: %w", failed)
	}
	return nil
}

// walk runs the steps and records everything.
func (l *life) walk(ctx context.Context) (err error) {
	undo, missing := l.rec.Tap()
	defer undo()
	l.rec.Describe(func(h *record.Header) { h.Missing = missing })
	record.Roomy(func() { err = l.rec.Walk(ctx, l.out, l.steps()) })
	return err
}

// own are names to keep in the recording: those of objects that it creates, and of a public image.
func (l *life) own() []string {
	names := []string{"winkube"}
	for _, registry := range []string{"mcr.microsoft.com/", "registry.k8s.io/"} {
		if !strings.HasPrefix(l.image, registry) {
			continue
		}
		names = append(names, l.image)
		if image, err := podspec.ParseImage(l.image); err == nil {
			names = append(names, image.Named.Name()+"@") // its digests
		}
	}
	return names
}

// newLife checks the host and refuses one where a recording would disturb a node.
func (o *hostDoctorOptions) newLife(ctx context.Context, out io.Writer) (*life, error) {
	facts, err := host.Read()
	if err != nil {
		return nil, err
	}
	if is, err := host.Elevated(); err == nil && !is {
		return nil, errors.New(`--record changes the host: run this as root, on Windows from a PowerShell opened by "Run as administrator"`)
	}
	l := &life{rec: record.New(), out: out, facts: facts, image: o.recordImage, forwarding: network.ForwardingFile(o.file + ".forwarding")}
	l.run = l.rec.Runner(command.New())
	l.cfg = network.Config{Mode: network.Mode(o.mode), Platform: platformOf(facts), Windows: network.WindowsNetwork(o.windows), Adapter: o.adapter}
	if len(o.podCIDRs) == 0 {
		o.podCIDRs = []string{recordRange}
	}
	ranges, err := parsePrefixes("pod-cidr", o.podCIDRs[:1])
	if err != nil {
		return nil, err
	}
	l.pods = ranges[0]
	nodeIP := ""
	if len(o.nodeIP) > 0 {
		nodeIP = o.nodeIP[0]
	}
	if l.cfg.NodeIPs, err = host.NodeAddress(nodeIP); err != nil {
		return nil, fmt.Errorf("--node-ip=%s: %w", nodeIP, err)
	}
	if err := l.connect(o.endpoint); err != nil {
		return nil, err
	}
	if err := l.refuse(ctx); err != nil {
		return nil, err
	}
	if err := l.chooseImage(ctx, o); err != nil {
		return nil, err
	}
	if err := l.connect(o.endpoint); err != nil { // again, now with the image
		return nil, err
	}
	l.rec.Describe(l.describe)
	return l, nil
}

// connect creates the engine client, whose requests are recorded.
func (l *life) connect(endpoint string) (err error) {
	l.engine, err = docker.New(docker.Config{Host: endpoint, Node: recordName, Platform: l.cfg.Platform, CallTimeout: time.Minute, InfraImage: l.image})
	if err != nil {
		return fmt.Errorf("--docker-endpoint=%s: %w", endpoint, err)
	}
	l.engine.Client.Wrap(l.rec.Transport)
	return nil
}

func (l *life) describe(h *record.Header) {
	h.Program, h.OS, h.Build, h.Kernel, h.Simulated = daemon.Kubernetes, l.cfg.Platform.OS, l.cfg.Platform.Build, l.facts.KernelVersion, simulated()
	h.Image, h.Mode, h.PodCIDR = l.image, string(l.cfg.Mode), l.pods.String()
	for _, a := range l.cfg.NodeIPs {
		h.NodeIPs = append(h.NodeIPs, a.String())
	}
}

// plain says whether the recording itself created an address.
func (l *life) plain(text string) bool {
	addr, err := netip.ParseAddr(text)
	return err == nil && (l.pods.Contains(addr) || slices.Contains(recordServices, addr))
}

// refuse returns an error if this host is a node.
func (l *life) refuse(ctx context.Context) error {
	networks, err := l.engine.Networks.Networks(ctx)
	if err != nil {
		return fmt.Errorf("--record needs Docker: %w", err)
	}
	for _, n := range networks {
		if n.Labels[network.LabelPods] != "" || strings.Contains(n.Name, recordName) {
			return fmt.Errorf("this host is a node, or an earlier recording was killed: Docker has the network %q; drain the node and run `docker network rm %[1]s`, or record another host", n.Name)
		}
	}
	if l.cfg.Platform.OS == "windows" {
		for _, name := range []string{"kubelet", "proxy", "kube-proxy"} {
			if said, _ := l.run.Run(ctx, nil, "sc.exe", "query", name); strings.Contains(string(said), "RUNNING") {
				return fmt.Errorf("this host is a node: the service %s runs; drain the node and run `sc.exe stop %[1]s`, or record another host", name)
			}
		}
	}
	return l.refuseSystem()
}

// chooseImage chooses the flag's image, or the pause image, or any present image that fits this host: it pulls nothing.
func (l *life) chooseImage(ctx context.Context, o *hostDoctorOptions) error {
	candidates := []string{o.recordImage}
	if o.recordImage == "" {
		list, _, err := l.engine.Images.ListImages(ctx)
		if err != nil {
			return err
		}
		candidates = []string{o.infraImage}
		for _, image := range slices.Backward(list.Named) { // the smallest first
			candidates = append(candidates, image.Names[len(image.Names)-1])
		}
	}
	info, err := l.engine.Client.Info(ctx)
	if err != nil {
		return err
	}
	l.rec.Describe(func(h *record.Header) { h.Engine, h.API = info.Version, info.APIVersion })
	var why error
	for _, name := range candidates {
		image, found, err := l.engine.Images.Lookup(ctx, name)
		if err == nil && found {
			if err = pod.CheckImageFits(name, image, l.cfg.Platform, info.Isolation == "hyperv"); err == nil {
				l.image, l.sandbox = name, image
				return nil
			}
		}
		why = errors.Join(why, err)
	}
	return errors.Join(fmt.Errorf("--record-image=%s: Docker has no such image that fits this host; run `docker pull mcr.microsoft.com/windows/nanoserver:TAG` for this build, or name another", o.recordImage), why)
}

// steps are the steps of the pod's life.
func (l *life) steps() []record.Step {
	return slices.Concat([]record.Step{{Name: "host", Do: l.look}}, []record.Step{
		{Name: "network", What: fmt.Sprintf("makes the pod network %s for %s as the kubelet does; a connection to this host may break off for some seconds", l.networkName(), l.pods),
			Do: l.makeNetwork, Undo: l.removeNetwork},
		{Name: "container", What: "starts a container from " + l.image + " on it", Do: l.startContainer, Undo: l.removeContainer, Needs: []string{"network"}},
	}, l.systemSteps(), []record.Step{{Name: "host again", Do: l.look}})
}

func (l *life) networkName() string {
	if own := l.cfg.OwnNetwork(); own != "" {
		return own
	}
	state, err := network.Plan(l.cfg, network.Facts{PodCIDRs: []string{l.pods.String()}})
	if err != nil || state.Network == nil {
		return string(l.cfg.Mode)
	}
	return state.Network.Name
}

// look reads the host without changing it.
func (l *life) look(ctx context.Context) error {
	l.rec.ReadRegistry()
	_, engine := l.engine.Client.Info(ctx)
	_, networks := l.engine.Networks.Networks(ctx)
	_, around := hostnet.New().Look()
	return errors.Join(engine, networks, around, l.lookSystem(ctx))
}

// makeNetwork has the kubelet's own Manager create the network.
func (l *life) makeNetwork(ctx context.Context) error {
	changed := make(chan error, 100)
	manager, err := network.New(l.cfg, network.Parts{
		Engine: recordEngine{l.engine.Networks, l.engine.Containers, l.engine}, Host: hostnet.Noting(l.forwarding), Windows: hostnet.Windows(), Clock: clock.RealClock{},
		Node: recordNode{changed}, Pods: recordPods{}, Prober: recordProber{}, Reports: recordReports{},
	})
	if err != nil {
		return err
	}
	manager.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: recordName}, Spec: v1.NodeSpec{PodCIDR: l.pods.String(), PodCIDRs: []string{l.pods.String()}}})
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var group sync.WaitGroup
	group.Go(func() { record.Roomy(func() { _ = manager.Run(running) }) })
	l.manager, l.end = manager, func() { cancel(); group.Wait() }
	timer := time.NewTimer(recordNetworkTime)
	defer timer.Stop()
	var last error
	for {
		select {
		case last = <-changed:
			if last == nil {
				return nil
			}
		case <-timer.C:
			return fmt.Errorf("the network is not ready after %s: %w", recordNetworkTime, last)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// removeNetwork leaves no network, no rule and no forwarding behind. Forwarding goes first, while the adapters are there that the network brought.
func (l *life) removeNetwork(ctx context.Context) error {
	if l.end == nil {
		return nil
	}
	l.end()
	name := l.networkName()
	_, stopped := l.forwarding.Undo(hostnet.StopForwarding)
	return errors.Join(stopped, l.engine.Networks.RemoveNetwork(ctx, name), hostnet.New().Apply(ctx, network.State{}), l.forgetNetwork(name))
}

// thePod is the pod whose life is recorded.
func (l *life) thePod() *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: recordName, Namespace: "default", UID: "winkube-record-0000-0000"},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "record", Image: l.image, Command: l.command()}}}}
	return p
}

// command is the container's command: images other than pause's may have none that keeps running.
func (l *life) command() []string {
	if l.cfg.Platform.OS == "windows" && !strings.Contains(l.image, "pause") {
		return []string{"ping", "-t", "127.0.0.1"}
	}
	return nil
}

func (l *life) startContainer(ctx context.Context) error {
	p := l.thePod()
	join, err := l.manager.Join(p)
	if err != nil {
		return err
	}
	sandbox := &pod.SandboxInputs{Network: join, Hostname: recordName, DNS: pod.DNS{Servers: []string{recordServices[0].String()}, Searches: []string{"svc.cluster.local"}}}
	in := &pod.Inputs{Image: l.sandbox, Entrypoint: p.Spec.Containers[0].Command, Sandbox: sandbox}
	if l.cfg.Platform.SharedNetwork {
		if err := l.engine.Containers.Apply(ctx, p, pod.Step{Action: pod.CreateSandbox, Sandbox: sandbox}); err != nil {
			return err
		}
		seen, err := l.engine.Containers.Observe(ctx, p.UID)
		if err != nil || len(seen.Sandboxes) == 0 {
			return errors.Join(err, errors.New("the sandbox is gone"))
		}
		in.Sandbox, in.SandboxID = nil, seen.Sandboxes[0].ID
		if err := l.attach(ctx, p, pod.Member{ID: in.SandboxID, SandboxID: in.SandboxID, PID: seen.Sandboxes[0].PID}); err != nil {
			return err
		}
	}
	l.manager.Joined()
	if err := l.engine.Containers.Apply(ctx, p, pod.Step{Action: pod.StartContainer, Container: "record", Kind: podspec.App, Inputs: in}); err != nil {
		return err
	}
	seen, err := l.engine.Containers.Observe(ctx, p.UID)
	if err != nil || len(seen.Containers) == 0 {
		return errors.Join(err, errors.New("the container is gone"))
	}
	app := seen.Containers[0]
	if err := l.attach(ctx, p, pod.Member{ID: app.ID, SandboxID: in.SandboxID, PID: app.HostPID}); err != nil {
		return err
	}
	return l.measure(app.ID)
}

// attach connects a container if the kubelet creates the endpoints, not the engine.
func (l *life) attach(ctx context.Context, p *v1.Pod, to pod.Member) error {
	if l.cfg.OwnNetwork() == "" {
		return nil
	}
	return l.manager.Attach(ctx, p, to)
}

// removeContainer stops and removes all containers of the pod.
func (l *life) removeContainer(ctx context.Context) error {
	p := l.thePod()
	seen, err := l.engine.Containers.Observe(ctx, p.UID)
	if err != nil {
		return err
	}
	var errs []error
	apply := func(action pod.Action, id string) {
		errs = append(errs, l.engine.Containers.Apply(ctx, p, pod.Step{Action: action, ID: id, Grace: time.Second}))
	}
	for _, c := range seen.Containers {
		apply(pod.StopContainer, c.ID)
		apply(pod.RemoveContainer, c.ID)
	}
	for _, s := range seen.Sandboxes {
		apply(pod.StopSandbox, s.ID)
		apply(pod.RemoveSandbox, s.ID)
	}
	return errors.Join(errs...)
}
