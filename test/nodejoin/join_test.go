package nodejoin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	authorization "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/command/commandtest"
	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/nodejoin"
	"github.com/winkube/winkube/test/apiserver"
)

var times = regexp.MustCompile(`(?m)^\[ *\d+\.\d s\] `)

// TestJoinAndLeave: a bare server becomes a node, a second join changes nothing, and leave removes everything except
// logs; so does a second leave.
func TestJoinAndLeave(t *testing.T) {
	for system, want := range map[string]struct{ files, kubelet, proxy string }{
		"windows": {"k/bootstrap k/ca.crt k/kubelet.conf k/kubelet.exe k/proxy.conf k/proxy.exe k/proxy.token kubelet/pki/kubelet-client-TIME.pem kubelet/pki/kubelet-client-current.pem",
			"--kubeconfig=k/kubelet.conf --rotate-certificates --client-ca-file=k/ca.crt --root-dir=kubelet --node-labels=winkube.io/proxy=true --max-pods=50", "--kubeconfig=k/proxy.conf --rotate-token-file --v=2"},
		"linux": {"default/kubelet default/proxy etc/kubelet.conf etc/pki/ca.crt etc/proxy.conf etc/proxy.token k/kubelet k/proxy kubelet/pki/kubelet-client-TIME.pem kubelet/pki/kubelet-client-current.pem units/kubelet.service units/proxy.service",
			"--kubeconfig=etc/kubelet.conf --rotate-certificates --client-ca-file=etc/pki/ca.crt --root-dir=kubelet --node-labels=winkube.io/proxy=true --max-pods=50", "--kubeconfig=etc/proxy.conf --rotate-token-file --v=2"},
	} {
		t.Run(system, func(t *testing.T) {
			t.Parallel()
			b := newBare(t, system)
			before := b.tree()
			b.cfg.KubeletFlags, b.cfg.ProxyFlags = []string{"--max-pods=50"}, []string{"--v=2"}
			if err := b.join(); err != nil {
				t.Fatalf("%v\n%s", err, b.said.String())
			}
			short := func(flags []string) string {
				return strings.ReplaceAll(strings.Join(flags, " "), filepath.Dir(b.cfg.Layout.Programs)+"/", "")
			}
			files := strings.ReplaceAll(want.files, "k/bootstrap ", "")
			if got := strings.Join(strings.Fields(names(b.tree())), " "); got != files {
				t.Errorf("files:\n%s, want\n%s", got, files)
			}
			if got := short(b.services["kubelet"]); got != want.kubelet {
				t.Errorf("kubelet %s, want %s", got, want.kubelet)
			}
			if got := short(b.services["proxy"]); got != want.proxy {
				t.Errorf("proxy %s, want %s", got, want.proxy)
			}
			for _, secret := range []string{b.cfg.Layout.NodeConfig(), b.file("proxy.conf"), b.file("proxy.token")} {
				if info, err := os.Stat(secret); err != nil || info.Mode().Perm() != 0o600 {
					t.Errorf("%s: %v, %v", secret, info.Mode(), err)
				}
			}
			lines := strings.Split(strings.TrimSpace(b.said.String()), "\n")
			for _, line := range lines[:len(lines)-1] {
				if !times.MatchString(line) {
					t.Errorf("a line without its time: %q", line)
				}
			}
			after, starts := b.tree(), b.starts["kubelet"]+b.starts["proxy"]
			b.said.Reset()
			if err := b.join(); err != nil {
				t.Fatal(err)
			}
			if b.tree() != after || b.starts["kubelet"]+b.starts["proxy"] != starts || strings.Count(b.said.String(), "unchanged") != 6 {
				t.Errorf("joining again changed something:\n%s\nwas\n%s\n%s", b.tree(), after, b.said.String())
			}
			b.leaveAll(t, before)
		})
	}
}

// leaveAll leaves twice; the second time nothing is left to do.
func (b *bare) leaveAll(t *testing.T, before string) {
	t.Helper()
	for round := range 2 {
		b.said.Reset()
		if err := nodejoin.Leave(b.Context(), b.cfg.Layout, false, b.leaving(b.host())); err != nil {
			t.Fatalf("%v\n%s", err, b.said.String())
		}
		if got := b.tree(); got != before || len(b.services) != 0 {
			t.Errorf("round %d leaves %v and\n%s", round, b.services, got)
		}
		said := b.said.String()
		if !strings.Contains(said, `forwarding: off again on "Ethernet"`) {
			t.Errorf("forwarding is not named:\n%s", said)
		}
		if named := strings.Contains(said, "control groups: /kubepods removed"); named != (b.cfg.Layout.OS == "linux") {
			t.Errorf("control groups are named: %t\n%s", named, said)
		}
		if round == 0 && !strings.Contains(said, "kubectl delete node win1") || !strings.Contains(said, "kubectl delete node") || round == 1 && !strings.Contains(said, "files: none were there") {
			t.Errorf("round %d says:\n%s", round, said)
		}
	}
}

// TestLeaveOrder: CNI plugins release addresses after the pods are gone and while the proxy still serves. While pods may
// be left, nothing is released.
func TestLeaveOrder(t *testing.T) {
	for name, test := range map[string]struct {
		pods, service error
		want          string // cleanup runs with the flags of the service
	}{
		"all goes well":       {want: "pods release cleanup network"},
		"a pod stays":         {pods: errors.New("the engine does not answer"), want: "pods cleanup network"},
		"the kubelet runs on": {service: errors.New("access denied"), want: "pods cleanup network"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBare(t, "windows")
			b.must(b.join())
			var order []string
			done := func(what string) { order = append(order, what) }
			run, failing := b.host(), test.service
			run.Install(b.cfg.Layout.Proxy(), func(_ []byte, args []string) ([]byte, error) {
				if slices.Contains(args, "--cleanup") {
					done("cleanup")
				}
				return b.program("proxy", args)
			})
			run.Install(b.cfg.Layout.Kubelet(), func(_ []byte, args []string) ([]byte, error) {
				if failing != nil {
					return nil, failing
				}
				return b.program("kubelet", args)
			})
			parts := b.leaving(run)
			parts.Pods = func(context.Context) (int, error) { done("pods"); return 1, test.pods }
			parts.Release = func(context.Context) ([]string, error) { done("release"); return []string{"2 containers"}, nil }
			parts.Network = func(context.Context) ([]string, error) { done("network"); return nil, nil }
			b.said.Reset()
			err := nodejoin.Leave(b.Context(), b.cfg.Layout, false, parts)
			if wrong := errors.Join(test.pods, test.service); (err == nil) != (wrong == nil) {
				t.Errorf("%v, want %v", err, wrong)
			}
			if got := strings.Join(order, " "); got != test.want {
				t.Errorf("did %q, want %q", got, test.want)
			}
			if told := strings.Contains(b.said.String(), "networks: removed 2 containers"); told != strings.Contains(test.want, "release") {
				t.Errorf("printed\n%s", b.said.String())
			}
		})
	}
}

// TestLeaveCleansByFlags: the proxy cleans up with the flags and the environment of its service that say where it left something, and the service goes
// only afterwards, so that a second run after a failure has them, too.
func TestLeaveCleansByFlags(t *testing.T) {
	for name, test := range map[string]struct {
		system string
		flags  []string // of the proxy
		env    []string // of its service
		want   string
	}{
		"kernelspace on Windows": {"windows", []string{"--proxy-mode=kernelspace", "--network-name=cbr0", "--network-mode=cni", "--log-file=C:\\x.log"}, []string{"INTERFACE_TO_ADD_SERVICE_IP=vEthernet (x)", "KUBE_NETWORK=y"},
			`["INTERFACE_TO_ADD_SERVICE_IP=vEthernet (x)" "KUBE_NETWORK=y"]: --cleanup --hostname-override=other --network-name=cbr0 --network-mode=cni`},
		"by default":          {"windows", nil, nil, "[]: --cleanup --hostname-override=other"},
		"a missing file":      {"windows", []string{"--config=/no/such/file", "--network_mode=overlay"}, nil, "[]: --cleanup --hostname-override=other --network-mode=overlay"},
		"a cgroup on Linux":   {"linux", []string{"--proxy-mode=connect", "--connect-cgroup=/sys/fs/cgroup/x"}, nil, "[]: --cleanup --hostname-override=other --connect-cgroup=/sys/fs/cgroup/x"},
		"an interface, Linux": {"linux", nil, []string{"INTERFACE_TO_ADD_SERVICE_IP=lo"}, `["INTERFACE_TO_ADD_SERVICE_IP=lo"]: --cleanup --hostname-override=other`},
		"its configuration":   {"linux", []string{"--config=CONFIG"}, nil, "[]: --cleanup --hostname-override=other --config=CONFIG"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBare(t, test.system)
			config := filepath.Join(t.TempDir(), "config.yaml")
			b.must(os.WriteFile(config, nil, 0o644))
			b.cfg.NodeName, b.env = "other", test.env
			for _, f := range test.flags {
				b.cfg.ProxyFlags = append(b.cfg.ProxyFlags, strings.Replace(f, "CONFIG", config, 1))
			}
			b.register = func() { b.node(func(n *v1.Node) { n.Name = "other" }) }
			b.silent = true
			b.must(b.join())
			if test.system == "linux" && len(test.env) > 0 { // an administrator adds to the settings
				file := filepath.Join(b.cfg.Layout.Defaults, "proxy")
				text, err := os.ReadFile(file)
				b.must(err)
				b.must(os.WriteFile(file, append(text, "# lo has them\n"+test.env[0]+"\n"...), 0o644))
			}
			run, failed := b.host(), false
			run.Install(b.cfg.Layout.Proxy(), func(_ []byte, args []string) ([]byte, error) {
				out, err := b.program("proxy", args)
				if args[0] == "--cleanup" && !failed {
					failed, err = true, commandtest.Exit(1, "HNS is not running")
				}
				return out, err
			})
			if err := nodejoin.Leave(b.Context(), b.cfg.Layout, false, b.leaving(run)); err == nil || !strings.Contains(err.Error(), "HNS is not running") || b.services["proxy"] == nil && test.system == "windows" {
				t.Errorf("%v, services %v", err, b.services)
			}
			b.must(nodejoin.Leave(b.Context(), b.cfg.Layout, false, b.leaving(run)))
			want := strings.Replace(test.want, "CONFIG", config, 1)
			if !slices.Equal(b.cleanups, []string{want, want}) || b.services["proxy"] != nil {
				t.Errorf("cleaned up by\n%s\nwant twice\n%s\nservices %v", strings.Join(b.cleanups, "\n"), want, b.services)
			}
		})
	}
}

// TestRefusals: an error is one line that names its cause, it changes nothing, and a correct join works afterwards.
func TestRefusals(t *testing.T) {
	for name, c := range map[string]refusal{
		"token malformed":        {change: func(b *bare) { b.cfg.Token = "abc" }, want: "--token: 3 characters that are not a join token; want one such as"},
		"token of k3s":           {change: func(b *bare) { b.cfg.Token = "K10" + strings.Repeat("ab", 32) + "::" + goodToken }, want: "of a token of k3s or RKE2, which is for their own agents; want credentials from their cluster: --kubeconfig"},
		"token wrong":            {change: func(b *bare) { b.cfg.Token = "abcdef.aaaaaaaaaaaaaaaa" }, want: "--token=abcdef.****************: its second half does not fit"},
		"token expired":          {change: func(b *bare) { b.must(b.EndToken(goodToken)) }, want: "the cluster does not know it: it has expired", repair: addToken},
		"token signs only":       {change: func(b *bare) { b.Forget(goodToken) }, want: "the API server does not accept it", repair: addToken},
		"token of another group": {change: func(b *bare) { b.May = func(string, authorization.ResourceAttributes) bool { return false } }, want: "it may not request a certificate; use one from `kubeadm token create`"},
		"no manifest": {change: func(b *bare) {
			b.May = func(_ string, what authorization.ResourceAttributes) bool {
				return what.Resource == "certificatesigningrequests"
			}
		}, want: "it may not request the proxy's credentials; run `kubectl apply -f build/kubernetes/node-join.yaml`"},
		"no hash":            {change: func(b *bare) { b.cfg.Hashes = nil }, want: "--discovery-token-ca-cert-hash is missing"},
		"hash malformed":     {change: func(b *bare) { b.cfg.Hashes = []string{"sha256:12"} }, want: "--discovery-token-ca-cert-hash=sha256:12: want sha256: and 64"},
		"hash of another CA": {change: func(b *bare) { b.cfg.Hashes = []string{"sha256:" + strings.Repeat("00", 32)} }, want: ": the cluster's CA has sha256:"},
		"no server":          {change: func(b *bare) { b.cfg.Server = "127.0.0.1:1" }, want: "SERVER=127.0.0.1:1: no API server answers there"},
		"server malformed":   {change: func(b *bare) { b.cfg.Server = "https://10.0.0.1" }, want: `SERVER "https://10.0.0.1": want host:port`},
		"nothing given":      {change: func(b *bare) { b.cfg.Token = "" }, want: "want SERVER, --token and"},
		"name of another machine": {change: func(b *bare) { b.node(func(n *v1.Node) { n.Status.NodeInfo.SystemUUID = "BBBB" }) },
			want:   "--node-name=win1: the cluster has a Node of that name for another machine (system UUID BBBB, and here AAAA); use another --node-name, or run `kubectl delete node win1`",
			repair: func(b *bare) { b.must(b.Delete("/api/v1/nodes/win1")) }},
		"name malformed":     {change: func(b *bare) { b.cfg.NodeName = "Win_1" }, want: "--node-name=Win_1: want lower-case"},
		"address malformed":  {change: func(b *bare) { b.cfg.NodeIP = "10.0.0" }, want: "--node-ip=10.0.0: want an address"},
		"no rights":          {change: func(b *bare) { b.parts.Elevated = false }, want: `this needs administrator rights: open PowerShell with "Run as administrator"`},
		"no rights on Linux": {system: "linux", change: func(b *bare) { b.parts.Elevated = false }, want: "this needs the rights of root"},
		"old Windows":        {change: func(b *bare) { b.parts.Facts.WindowsBuild = 9600 }, want: "build 9600, which has no containers; want Windows Server 2016 (build 14393) or later"},
		"no programs":        {change: func(b *bare) { b.cfg.Programs = "/nowhere" }, want: "is not there: want kubelet and proxy in one directory"},
		"half a program": {change: func(b *bare) {
			b.parts.Runs = func(_ context.Context, program string) error {
				if program == filepath.Join(b.cfg.Programs, "proxy.exe") {
					return errors.New("exec format error")
				}
				return nil
			}
		}, want: "proxy.exe does not run on this host: check the sum of the archive and unpack it again: exec format error"},
		"k3s runs": {system: "linux", change: func(b *bare) {
			b.parts.PortFree = func() error { return errors.New("listen tcp :10250: address in use") }
		},
			want: "another kubelet runs on this host, such as that of k3s, RKE2 or kubeadm: listen tcp :10250: address in use; take the host out of its cluster and stop it first"},
		"RKE2 runs": {change: func(b *bare) {
			b.parts.PortFree = func() error { return errors.New("listen tcp :10250: address in use") }
		},
			want: "another kubelet runs on this host"},
		"flag that join has": {change: func(b *bare) { b.cfg.KubeletFlags = []string{"--node_ip=1.2.3.4"} }, want: "--node_ip=1.2.3.4 for the kubelet: `node join` sets this flag; want --node-ip before the first --"},
		"flag that is none": {change: func(b *bare) {
			b.parts.CheckProxy = func(context.Context, []string) error { return errors.New("unknown flag: --x") }
		}, want: "unknown flag: --x"},
		"node's credentials for both": {change: func(b *bare) { b.cfg.Server, b.cfg.Token, b.cfg.Hashes, b.cfg.Kubeconfig = "", "", nil, "/k.conf" },
			want: "--kubeconfig needs --proxy-kubeconfig: the proxy may not use the node's credentials"},
		"token and file":     {change: func(b *bare) { b.cfg.Kubeconfig = "/k.conf" }, want: "--kubeconfig replaces SERVER, --token"},
		"a flag with spaces": {system: "linux", change: func(b *bare) { b.cfg.KubeletFlags = []string{"--node-labels=a=b c"} }, want: "systemd splits settings at spaces"},
		"kubeadm's host": {system: "linux", change: func(b *bare) {
			dir := filepath.Join(b.cfg.Layout.Units, "kubelet.service.d")
			b.must(os.Mkdir(dir, 0o755))
			b.must(os.WriteFile(filepath.Join(dir, "10-kubeadm.conf"), nil, 0o644))
		}, want: "this host is set up for kubeadm; run `kubeadm join`", repair: func(b *bare) { b.must(os.RemoveAll(filepath.Join(b.cfg.Layout.Units, "kubelet.service.d"))) }},
		"a unit of others": {system: "linux", change: func(b *bare) {
			b.must(os.WriteFile(filepath.Join(b.cfg.Layout.Units, "proxy.service"), []byte("[Unit]\n"), 0o644))
		},
			want:   "proxy.service exists and `kubelet node join` did not write it",
			repair: func(b *bare) { b.must(os.Remove(filepath.Join(b.cfg.Layout.Units, "proxy.service"))) }},
	} {
		t.Run(name, c.check)
	}
}

// TestOwnPort: the port that the node's own kubelet has is no reason to refuse a second join.
func TestOwnPort(t *testing.T) {
	for _, system := range []string{"windows", "linux"} {
		b := newBare(t, system)
		b.must(b.join())
		b.parts.PortFree = func() error { return errors.New("address in use") }
		b.cfg.KubeletFlags = []string{"--max-pods=7"}
		b.must(b.join())
		if !slices.Contains(b.services["kubelet"], "--max-pods=7") {
			t.Errorf("%s: the kubelet has %q", system, b.services["kubelet"])
		}
	}
}

// addToken makes the token valid again.
func addToken(b *bare) { b.must(b.AddToken(goodToken)) }

func (b *bare) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// TestGoesOn: an interrupted run leaves no join token behind, and the next run continues from there.
func TestGoesOn(t *testing.T) {
	for name, c := range map[string]struct {
		wrong, right func(*bare)
		want         string
	}{
		"no one signs the request": {func(b *bare) { b.Signs = false }, func(b *bare) {
			b.Signs = true
			b.must(b.Delete("/apis/certificates.k8s.io/v1/certificatesigningrequests/csr-3")) // the simulated API server has no selectors
		}, "it was not approved within 3s"},
		"the kubelet does not register": {func(b *bare) { b.silent = true }, func(b *bare) { b.silent = false; b.starts["kubelet"] = 0 },
			"the kubelet has not registered Node win1 after"},
		"the Node does not become ready": {func(b *bare) { b.notReady = true }, func(b *bare) { b.notReady = false; b.node(func(*v1.Node) {}) },
			"is not Ready after 3s: KubeletNotReady: no network; run `kubelet doctor`"},
		"the proxy's token has no rights": {func(b *bare) {
			b.May = func(user string, what authorization.ResourceAttributes) bool {
				return strings.HasPrefix(user, "system:bootstrap:") && apiserver.StandardRights(user, what)
			}
		}, func(b *bare) { b.May = nil }, "these credentials may not watch endpointslices; use ones with the role system:node-proxier"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBare(t, "windows")
			c.wrong(b)
			b.cfg.Patience = 3 * time.Second
			err := b.join()
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q\n%s", err, c.want, b.said.String())
			}
			if there(b.file("bootstrap-kubelet.conf")) {
				t.Error("the join token is left on the disk")
			}
			c.right(b)
			b.cfg.Patience = time.Minute
			if err := b.join(); err != nil {
				t.Errorf("the second run: %v\n%s", err, b.said.String())
			}
		})
	}
}

// TestPlanted: system programs do not use a directory or a library that another account created.
func TestPlanted(t *testing.T) {
	b := newBare(t, "windows")
	b.must(os.Mkdir(b.cfg.Layout.Programs, 0o755))
	planted := filepath.Join(b.cfg.Layout.Programs, "version.dll")
	b.must(os.WriteFile(planted, nil, 0o644))
	b.parts.CheckOwner = func(path string) error {
		if path == planted {
			return errors.New(path + " belongs to account S-1-5-21-1-2-3-1001")
		}
		return nil
	}
	if err := b.join(); err == nil || !strings.Contains(err.Error(), "version.dll belongs to account") {
		t.Errorf("%v", err)
	}
	if there(b.cfg.Layout.Kubelet()) || there(b.cfg.Layout.NodeConfig()) {
		t.Error("programs or secrets were put beside it")
	}
}

// TestDirectoriesFirst: a directory is protected before files are created in it.
func TestDirectoriesFirst(t *testing.T) {
	b := newBare(t, "windows")
	protect := b.parts.ProtectDir
	protected := map[string]bool{}
	b.parts.ProtectDir = func(dir string) (bool, error) {
		if entries, err := os.ReadDir(dir); err == nil && len(entries) > 0 && dir != b.cfg.Layout.Root {
			t.Errorf("%s holds files before it is protected", dir)
		}
		protected[dir] = true
		return protect(dir)
	}
	b.must(b.join())
	for _, dir := range []string{b.cfg.Layout.Programs, b.cfg.Layout.Root, filepath.Join(b.cfg.Layout.Root, "pki"), b.cfg.Layout.Logs[0]} {
		if !protected[dir] {
			t.Errorf("%s was not protected", dir)
		}
	}
}

// TestAnotherCluster: a node of one cluster cannot join another, nor can a node with another name join this one.
func TestAnotherCluster(t *testing.T) {
	b := newBare(t, "windows")
	b.must(b.join())
	other := newBare(t, "windows")
	elsewhere := b.cfg
	elsewhere.Server, elsewhere.Hashes = other.Address(), []string{other.Hash()}
	if err := nodejoin.Join(t.Context(), elsewhere, b.parts); err == nil || !strings.Contains(err.Error(), "belongs to another cluster, "+b.URL+"; run `kubelet node leave` first") {
		t.Errorf("%v", err)
	}
	b.cfg.NodeName = "win2"
	if err := b.join(); err == nil || !strings.Contains(err.Error(), "has the certificate of system:node:win1, want system:node:win2") {
		t.Errorf("%v", err)
	}
}

// TestOwnFiles: kubeconfigs instead of a token are copied, without an error if source and target are equal; credentials
// with wrong rights are rejected.
func TestOwnFiles(t *testing.T) {
	b := newBare(t, "windows")
	b.must(b.join())
	b.cfg.Server, b.cfg.Token, b.cfg.Hashes = "", "", nil
	b.cfg.Kubeconfig, b.cfg.ProxyKubeconfig = b.cfg.Layout.NodeConfig(), b.file("proxy.conf")
	for range 2 {
		if err := b.join(); err != nil {
			t.Fatalf("%v\n%s", err, b.said.String())
		}
	}
	b.elsewhere()
	b.cfg.ProxyKubeconfig = b.cfg.Layout.NodeConfig()
	if err := b.join(); err == nil || !strings.Contains(err.Error(), "these credentials may not watch endpointslices; use ones with the role system:node-proxier") {
		t.Errorf("the node's credentials for the proxy: %v", err)
	}
	b.cfg.ProxyKubeconfig = b.file("proxy.conf")
	b.May = func(string, authorization.ResourceAttributes) bool { return true }
	if err := b.join(); err == nil || !strings.Contains(err.Error(), "these are administrator credentials; use ones with only the role system:node-proxier") {
		t.Errorf("an administrator's credentials for the proxy: %v", err)
	}
}

// elsewhere joins with kubeconfigs in another directory, which refer to files next to them.
func (b *bare) elsewhere() {
	b.Helper()
	dir := b.TempDir()
	read := func(path string) string {
		data, err := os.ReadFile(path)
		b.must(err)
		return string(data)
	}
	b.must(os.WriteFile(filepath.Join(dir, "token"), []byte(read(b.file("proxy.token"))), 0o600))
	b.must(os.WriteFile(filepath.Join(dir, "own.conf"), []byte(strings.ReplaceAll(read(b.file("proxy.conf")), b.file("proxy.token"), "token")), 0o600))
	former := b.cfg.ProxyKubeconfig
	b.cfg.ProxyKubeconfig = filepath.Join(dir, "own.conf")
	b.must(b.join())
	if got := read(b.file("proxy.conf")); !strings.Contains(got, filepath.Join(dir, "token")) {
		b.Errorf("the copy names no absolute path:\n%s", got)
	}
	b.cfg.ProxyKubeconfig = former
}

// TestProxyToken: the token is bound to the Node, and replaced if that Node was deleted meanwhile or the token is old.
func TestProxyToken(t *testing.T) {
	b := newBare(t, "linux")
	b.must(b.join())
	read := func() (string, kubeclient.AccountToken) {
		text, err := os.ReadFile(b.file("proxy.token"))
		b.must(err)
		token, err := kubeclient.ReadAccountToken(string(text))
		b.must(err)
		return string(text), token
	}
	first, token := read()
	if token.Node != "win1" || token.NodeUID != "uid-1" || token.Account != "winkube-proxy" || token.Namespace != "kube-system" {
		t.Errorf("%+v", token)
	}
	b.node(func(n *v1.Node) { n.UID = "uid-2" })
	b.must(b.join())
	second, token := read()
	if second == first || token.NodeUID != "uid-2" {
		t.Errorf("after the Node was recreated: %+v", token)
	}
	b.parts.Now = func() time.Time { return token.Due().Add(time.Minute) }
	b.must(b.join())
	if third, _ := read(); third == second {
		t.Error("an old token was kept")
	}
}
