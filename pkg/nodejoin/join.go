// Package nodejoin turns a server into a node of a cluster, and back: `kubelet node join` and `kubelet node leave`.
//
//	arguments --checks, nothing changed--> cluster, token, name --> directories, programs, credentials, services --> Node Ready --> doctor
//
// Each step changes only what differs, so that a second run continues where the first ended.
package nodejoin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/winkube/winkube/pkg/daemon"
	"github.com/winkube/winkube/pkg/docker"
	"github.com/winkube/winkube/pkg/host"
	"github.com/winkube/winkube/pkg/nodejoin/discovery"
)

// Config contains the user's arguments: either Server, Token and Hashes, or Kubeconfig and ProxyKubeconfig.
type Config struct {
	Server          string // HOST:PORT
	Token           string
	Hashes          []string // sha256:HEX
	Kubeconfig      string   // the node's own credentials
	ProxyKubeconfig string
	NodeName        string // "": the host's
	NodeIP          string
	Programs        string // source directory of the programs
	Layout          Layout
	KubeletFlags    []string // in addition to those that join sets
	ProxyFlags      []string
	Patience        time.Duration // in total for the certificate, the Node and its readiness
}

// HashFlag is the name of the flag for Config.Hashes.
const HashFlag = "discovery-token-ca-cert-hash"

// Parts are the dependencies of Join.
type Parts struct {
	Out       io.Writer
	Now       func() time.Time
	UserAgent string
	Facts     host.Facts
	Elevated  bool
	Engine    func(ctx context.Context) (docker.Info, error)
	Services  Services
	// CheckKubelet and CheckProxy refuse flags that the programs would refuse on this host.
	CheckKubelet func() error
	CheckProxy   func(ctx context.Context, flags []string) error
	// Runs returns an error if a program does not run on this host. PortFree does if something listens on the kubelet's port.
	Runs     func(ctx context.Context, program string) error
	PortFree func() error
	// ProtectDir creates a directory that only administrators and the system may write to, and CheckOwner refuses files of other owners.
	ProtectDir func(dir string) (changed bool, err error)
	CheckOwner func(path string) error
	// CopyProgram replaces a program, which may be running.
	CopyProgram func(from, to string) (changed bool, err error)
	// Doctor checks the node for faults and prints them.
	Doctor func(ctx context.Context, nodeConfig string) error
}

// joiner is one run.
type joiner struct {
	Config
	Parts
	progress
	token   discovery.Token
	pins    []discovery.Pin
	server  string
	cluster discovery.Cluster
	// kubeletReplaced and proxyReplaced say which programs are new, so that their services restart.
	kubeletReplaced, proxyReplaced bool
}

// progress prints one line for each completed step.
type progress struct {
	out   io.Writer
	now   func() time.Time
	begin time.Time
}

func (p progress) say(format string, args ...any) {
	fmt.Fprintf(p.out, "[%5.1f s] %s\n", p.now().Sub(p.begin).Seconds(), fmt.Sprintf(format, args...))
}

// Join makes this host a node. It checks the arguments, the host and the cluster before it changes anything. An error is one line.
func Join(ctx context.Context, cfg Config, parts Parts) error {
	j := &joiner{Config: cfg, Parts: parts, progress: progress{out: parts.Out, now: parts.Now, begin: parts.Now()}}
	if err := j.checkArguments(); err != nil {
		return oneLine(err)
	}
	for _, step := range []func(context.Context) error{
		j.checkKubelet, j.checkHost, j.findCluster, gate{j}.checkCluster, // nothing is changed before
		j.makeDirectories, j.copyPrograms, issuer{j}.getCertificate, j.startKubelet, j.awaitNode, issuer{j}.getProxyCredentials, j.startProxy, j.awaitReady,
	} {
		if err := step(ctx); err != nil {
			return oneLine(err)
		}
	}
	j.hints()
	return j.Doctor(ctx, j.Layout.NodeConfig())
}

func oneLine(err error) error {
	return errors.New(strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; "))
}

// checkArguments checks the arguments without reading anything else.
func (j *joiner) checkArguments() error {
	if j.NodeName == "" {
		j.NodeName = j.Facts.Hostname
	}
	if wrong := validation.IsDNS1123Subdomain(j.NodeName); len(wrong) > 0 {
		return fmt.Errorf("--node-name=%s: want lower-case letters, digits, dots and hyphens", j.NodeName)
	}
	if _, err := netip.ParseAddr(j.NodeIP); j.NodeIP != "" && err != nil {
		return fmt.Errorf("--node-ip=%s: want an address such as 10.0.0.7", j.NodeIP)
	}
	for name, path := range map[string]string{"target": j.Layout.Programs, "root-dir": j.Layout.Root} {
		if !filepath.IsAbs(path) {
			return fmt.Errorf("--%s=%s: want an absolute path", name, path)
		}
	}
	if err := errors.Join(reserved("kubelet", j.KubeletFlags), reserved("proxy", j.ProxyFlags)); err != nil {
		return err
	}
	if j.Kubeconfig != "" {
		return j.checkFiles()
	}
	if j.Server == "" || j.Token == "" {
		return errors.New("want SERVER, --token and --" + HashFlag + ", which `kubeadm token create --print-join-command` prints, or --kubeconfig and --proxy-kubeconfig")
	}
	var errs [3]error
	j.server, errs[0] = discovery.ParseServer(j.Server)
	j.token, errs[1] = discovery.ParseToken(j.Token)
	j.pins, errs[2] = discovery.ParsePins(HashFlag, j.Hashes)
	return errors.Join(errs[:]...)
}

// own are the flags that join passes to the programs, with the flag of join that changes them.
var own = map[string]string{"kubeconfig": "--kubeconfig or --proxy-kubeconfig", "bootstrap-kubeconfig": "--token", "root-dir": "--root-dir", "cert-dir": "--root-dir", "client-ca-file": "--target",
	"hostname-override": "--node-name", "node-ip": "--node-ip", "bind-address": "--node-ip", "rotate-token-file": "--token"}

// reserved refuses flags that join itself passes to a program.
func reserved(program string, flags []string) error {
	for _, flag := range flags {
		name, _, _ := strings.Cut(strings.TrimLeft(flag, "-"), "=")
		if instead := own[strings.ReplaceAll(name, "_", "-")]; instead != "" {
			return fmt.Errorf("%s for the %s: `node join` sets this flag; want %s before the first --", flag, program, instead)
		}
	}
	return nil
}

// checkFiles checks arguments that name credentials instead of a token.
func (j *joiner) checkFiles() error {
	switch {
	case j.Server != "" || j.Token != "" || len(j.Hashes) > 0:
		return errors.New("--kubeconfig replaces SERVER, --token and --" + HashFlag + ": give it without them")
	case j.ProxyKubeconfig == "":
		return errors.New("--kubeconfig needs --proxy-kubeconfig: the proxy may not use the node's credentials, which cannot read EndpointSlices (want credentials with the role system:node-proxier)")
	}
	return nil
}

// Versions of Docker. Since 23 it refuses builds of Windows before 17763 (moby#43254, checkSystem in daemon/daemon_windows.go).
const (
	oldestBuild    = 14393
	oldestOfLate   = 17763
	firstLateMajor = 23
)

// checkKubelet checks the kubelet's flags as the installation of its service will.
func (j *joiner) checkKubelet(context.Context) error {
	if err := j.CheckKubelet(); err != nil {
		return fmt.Errorf("flags for the kubelet: %w", err)
	}
	return nil
}

// checkHost checks this host.
func (j *joiner) checkHost(ctx context.Context) error {
	windows := j.Facts.OS == "windows"
	switch {
	case !j.Elevated && windows:
		return errors.New(`this needs administrator rights: open PowerShell with "Run as administrator" and run it again`)
	case !j.Elevated:
		return errors.New("this needs the rights of root: run it again with sudo")
	case windows && j.Facts.WindowsBuild < oldestBuild:
		return fmt.Errorf("this is %s, build %d, which has no containers; want Windows Server 2016 (build 14393) or later", j.Facts.OSImage, j.Facts.WindowsBuild)
	}
	info, err := j.Engine(ctx)
	if err := j.checkEngine(info, err); err != nil {
		return err
	}
	for _, program := range []string{j.Layout.Kubelet(), j.Layout.Proxy()} {
		from := j.source(program)
		if !there(from) {
			return fmt.Errorf("%s is not there: want kubelet and proxy in one directory; --programs=%s names it", from, j.Programs)
		}
		if err := j.Runs(ctx, from); err != nil { // an archive that was fetched or unpacked in part
			return fmt.Errorf("%s does not run on this host: check the sum of the archive and unpack it again: %w", from, err)
		}
	}
	for _, s := range []Service{j.kubelet(), j.proxy()} {
		if err := j.Services.Check(s); err != nil {
			return err
		}
	}
	if err := j.checkAlone(); err != nil {
		return err
	}
	if err := j.CheckProxy(ctx, j.ProxyFlags); err != nil {
		return err
	}
	j.say("host: %s, Docker %s, Node %s", j.Facts.OSImage, info.Version, j.NodeName)
	return nil
}

// checkAlone refuses a host with another kubelet: that of k3s and RKE2 is a part of other programs, without a unit that Services would find.
func (j *joiner) checkAlone() error {
	flags, _, err := j.Services.Installed(j.kubelet())
	if err != nil || slices.Contains(flags, "--kubeconfig="+j.Layout.NodeConfig()) { // an earlier run's
		return err
	}
	if err := j.PortFree(); err != nil {
		return fmt.Errorf("another kubelet runs on this host, such as that of k3s, RKE2 or kubeadm: %w; take the host out of its cluster and stop it first", err)
	}
	return nil
}

func (j *joiner) checkEngine(info docker.Info, err error) error {
	windows, build := j.Facts.OS == "windows", j.Facts.WindowsBuild
	var major int
	_, _ = fmt.Sscanf(info.Version, "%d.", &major) // 0: unknown
	old := windows && build < oldestOfLate
	want := daemon.OldestEngine + " or later"
	if old {
		want = daemon.OldestEngine + " to 20.10"
	}
	for _, f := range docker.Faults(info, err, "") {
		switch f.Reason {
		case docker.TooOld:
			return fmt.Errorf("engine: %s; want Docker %s", f.What, want)
		case docker.TooNew:
			return fmt.Errorf("engine: %s; %s", f.What, f.Fix)
		}
	}
	switch {
	case err != nil && old:
		return fmt.Errorf("engine: Docker does not answer: %w; start its service (Start-Service docker); build %d needs a version before %d, which needs build %d", err, build, firstLateMajor, oldestOfLate)
	case err != nil && windows:
		return fmt.Errorf("engine: Docker does not answer: %w; start its service (Start-Service docker)", err)
	case err != nil:
		return fmt.Errorf("engine: Docker does not answer: %w; start its service (systemctl start docker)", err)
	case info.OS != "" && info.OS != j.Facts.OS:
		return fmt.Errorf("engine: Docker runs containers of %s; want containers of %s, as this host is", info.OS, j.Facts.OS)
	case old && major >= firstLateMajor:
		return fmt.Errorf("engine: Docker %s needs Windows build %d, and this is build %d; want Docker %s", info.Version, oldestOfLate, build, want)
	}
	return nil
}

// source is the file from which an installed program is copied.
func (j *joiner) source(program string) string {
	return filepath.Join(j.Programs, filepath.Base(program))
}

// findCluster finds the cluster to join, and verifies it.
func (j *joiner) findCluster(ctx context.Context) (err error) {
	if j.Kubeconfig != "" {
		j.cluster, err = clusterOf(j.Kubeconfig)
	} else {
		j.cluster, err = discovery.Find(ctx, j.server, j.token, HashFlag, j.pins)
	}
	if err != nil {
		return err
	}
	j.say("cluster: %s", j.cluster.Server)
	return nil
}

// makeDirectories creates the directories before a program or a secret is written.
func (j *joiner) makeDirectories(context.Context) error {
	changed := 0
	for _, dir := range j.Layout.directories() {
		made, err := j.ProtectDir(dir)
		if err != nil {
			return err
		}
		if made {
			changed++
		}
	}
	if j.Facts.OS == "windows" { // a program loads libraries next to it
		entries, err := os.ReadDir(j.Layout.Programs)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := j.CheckOwner(filepath.Join(j.Layout.Programs, e.Name())); err != nil {
				return err
			}
		}
	}
	j.say("directories: %s", changes(changed, j.Layout.Programs+" and others are for administrators and the system only"))
	return nil
}

// changes describes what was done, or "unchanged".
func changes(count int, what string) string {
	if count == 0 {
		return "unchanged"
	}
	return what
}

func (j *joiner) copyPrograms(context.Context) error {
	changed := 0
	for program, replaced := range map[string]*bool{j.Layout.Kubelet(): &j.kubeletReplaced, j.Layout.Proxy(): &j.proxyReplaced} {
		from := j.source(program)
		if from == program {
			continue
		}
		var err error
		if *replaced, err = j.CopyProgram(from, program); err != nil {
			return fmt.Errorf("cannot copy %s to %s: %w", from, program, err)
		}
		if *replaced {
			changed++
		}
	}
	j.say("programs: %s", changes(changed, j.Layout.Kubelet()+", "+j.Layout.Proxy()))
	return nil
}

// kubelet is the service with all its flags.
func (j *joiner) kubelet() Service {
	flags := []string{"--kubeconfig=" + j.Layout.NodeConfig(), "--rotate-certificates", "--client-ca-file=" + j.Layout.ca(), "--root-dir=" + j.Layout.Root, "--node-labels=" + ProxyLabel + "=true"}
	return Service{Name: "kubelet", Program: j.Layout.Kubelet(), Flags: append(j.named(flags, "node-ip"), j.KubeletFlags...)}
}

func (j *joiner) proxy() Service {
	flags := []string{"--kubeconfig=" + j.Layout.proxyConfig()}
	if j.ProxyKubeconfig == "" {
		flags = append(flags, "--rotate-token-file")
	}
	return Service{Name: "proxy", Program: j.Layout.Proxy(), Flags: append(j.named(flags, "bind-address"), j.ProxyFlags...)}
}

// named adds the node's name and address if they are not the defaults.
func (j *joiner) named(flags []string, address string) []string {
	if j.NodeName != j.Facts.Hostname {
		flags = append(flags, "--hostname-override="+j.NodeName)
	}
	if j.NodeIP != "" {
		flags = append(flags, "--"+address+"="+j.NodeIP)
	}
	return flags
}

func (j *joiner) startKubelet(ctx context.Context) error {
	return j.start(ctx, j.kubelet(), j.kubeletReplaced)
}
func (j *joiner) startProxy(ctx context.Context) error {
	return j.start(ctx, j.proxy(), j.proxyReplaced)
}

func (j *joiner) start(ctx context.Context, s Service, again bool) error {
	changed, err := j.Services.Ensure(ctx, s, again)
	if err != nil {
		return fmt.Errorf("service %s: %w", s.Name, err)
	}
	if changed {
		j.say("service %s: installed and running", s.Name)
	} else {
		j.say("service %s: unchanged and running", s.Name)
	}
	return nil
}

// hints prints what only the administrator can decide.
func (j *joiner) hints() {
	if j.Facts.OS != "windows" {
		return
	}
	j.say("firewall: the programs open what they listen on (rules winkube ...); --windows-firewall=false prevents that")
	j.say("Defender: scanning volumes costs time; exclude them with: Add-MpPreference -ExclusionPath '%s'", j.Layout.Root)
}
