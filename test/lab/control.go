package lab

import (
	"context"
	"embed"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// manifests are the cluster's own objects, applied before the nodes start.
//
//go:embed manifests/*.yaml
var manifests embed.FS

func (c *Cluster) controlProcesses() []*Process {
	control := c.Control
	process := func(name string, argv func() []string) *Process {
		return &Process{Name: name, host: control, argv: argv}
	}
	gateway := process("gateway", func() []string {
		return []string{filepath.Join(c.Tools, "cluster"), "gateway", "--kubeconfig=" + control.PKI("admin.kubeconfig"), "--to=" + c.apiAddress()}
	})
	gateway.files = c.listen
	return []*Process{
		process("etcd", c.etcdArgv),
		process("kube-apiserver", c.apiserverArgv),
		process("kube-controller-manager", c.controllerManagerArgv),
		process("kube-scheduler", c.schedulerArgv),
		gateway,
	}
}

func (c *Cluster) apiAddress() string { return net.JoinHostPort(c.Control.Addr.String(), apiPort) }

func (c *Cluster) etcdArgv() []string {
	return []string{
		filepath.Join(c.Tools, "etcd"),
		"--name=control",
		"--data-dir=" + c.Control.Dir("etcd"),
		"--listen-client-urls=http://127.0.0.1:2379",
		"--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380",
		"--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=control=http://127.0.0.1:2380",
		"--unsafe-no-fsync", // data need not survive the cluster
		"--log-level=warn",
	}
}

func (c *Cluster) apiserverArgv() []string {
	pki := c.Control.PKI
	return []string{
		c.controlProgram("kube-apiserver"),
		"--etcd-servers=http://127.0.0.1:2379",
		"--advertise-address=" + c.Control.Addr.String(),
		"--secure-port=" + apiPort,
		"--tls-cert-file=" + pki("apiserver.crt"),
		"--tls-private-key-file=" + pki("apiserver.key"),
		"--client-ca-file=" + pki("ca.crt"),
		"--kubelet-certificate-authority=" + pki("ca.crt"),
		"--kubelet-client-certificate=" + pki("apiserver-kubelet-client.crt"),
		"--kubelet-client-key=" + pki("apiserver-kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file=" + pki("ca.crt"),
		"--requestheader-allowed-names=front-proxy-client", // the same CA also signs clients that are not proxies
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + pki("front-proxy-client.crt"),
		"--proxy-client-key-file=" + pki("front-proxy-client.key"),
		"--service-account-issuer=https://kubernetes.default.svc." + DNSDomain,
		"--service-account-key-file=" + pki("sa.pub"),
		"--service-account-signing-key-file=" + pki("sa.key"),
		"--service-cluster-ip-range=" + c.both(ServiceCIDR, serviceCIDR6),
		"--authorization-mode=Node,RBAC",
		"--enable-bootstrap-token-auth",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged",
		"--enable-aggregator-routing",
		"--event-ttl=1h",
		"--shutdown-delay-duration=0s",
		"--v=1",
	}
}

func (c *Cluster) controllerManagerArgv() []string {
	pki := c.Control.PKI
	size := "--node-cidr-mask-size=24"
	if c.DualStack {
		size = "--node-cidr-mask-size-ipv4=24" // and 64 for IPv6
	}
	return []string{
		c.controlProgram("kube-controller-manager"),
		"--kubeconfig=" + pki("controller-manager.kubeconfig"),
		"--authentication-kubeconfig=" + pki("controller-manager.kubeconfig"),
		"--authorization-kubeconfig=" + pki("controller-manager.kubeconfig"),
		"--bind-address=127.0.0.1",
		"--leader-elect=false",
		"--controllers=*,bootstrapsigner,tokencleaner", // as kubeadm does
		"--use-service-account-credentials",
		"--service-account-private-key-file=" + pki("sa.key"),
		"--root-ca-file=" + pki("ca.crt"),
		"--cluster-signing-cert-file=" + pki("ca.crt"),
		"--cluster-signing-key-file=" + pki("ca.key"),
		"--allocate-node-cidrs",
		"--cluster-cidr=" + c.both(PodCIDR, podCIDR6),
		size,
		"--service-cluster-ip-range=" + c.both(ServiceCIDR, serviceCIDR6),
		"--node-monitor-grace-period=24s", // upstream's default of 50s is too long for tests of failing nodes
		"--node-monitor-period=2s",
		"--concurrent-gc-syncs=5",
		"--flex-volume-plugin-dir=" + c.Control.Dir("plugins"),
		"--v=1",
	}
}

func (c *Cluster) schedulerArgv() []string {
	pki := c.Control.PKI
	return []string{
		c.controlProgram("kube-scheduler"),
		"--kubeconfig=" + pki("scheduler.kubeconfig"),
		"--authentication-kubeconfig=" + pki("scheduler.kubeconfig"),
		"--authorization-kubeconfig=" + pki("scheduler.kubeconfig"),
		"--bind-address=127.0.0.1",
		"--leader-elect=false",
		"--v=1",
	}
}

// listen opens the port on the machine's loopback through which users reach the API server. The gateway inherits the
// socket and runs in the control plane's network namespace: a socket stays in the namespace in which it was opened. The
// kubeconfig records the port; a restarted gateway reuses it for existing clients.
func (c *Cluster) listen() ([]*os.File, error) {
	former := ""
	if config, err := clientcmd.LoadFromFile(c.Kubeconfig()); err == nil && config.Clusters["winkube"] != nil {
		former = config.Clusters["winkube"].Server
	}
	var listener net.Listener
	var err error
	for _, address := range gatewayAddresses(former) {
		if listener, err = net.Listen("tcp", address); err == nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.LoadFromFile(c.Control.PKI("admin.kubeconfig"))
	if err != nil {
		return nil, err
	}
	config.Clusters["winkube"].Server = "https://" + listener.Addr().String()
	return []*os.File{file}, clientcmd.WriteToFile(*config, c.Kubeconfig())
}

// gatewayAddresses returns the addresses on which the gateway may listen, in order of preference: the previous address,
// if any, then fixed ports, one per cluster of this machine. They are below the kernel's ephemeral ports.
func gatewayAddresses(former string) []string {
	var addresses []string
	if address, ok := strings.CutPrefix(former, "https://"); ok {
		addresses = append(addresses, address)
	}
	for port := 16443; port < 16475; port++ {
		addresses = append(addresses, fmt.Sprintf("127.0.0.1:%d", port))
	}
	return addresses
}

// upControl starts the control plane and waits until the API server has the cluster's own objects and the controllers
// work. Scheduler and controller manager start last: they exit if the API server has not created its bootstrap roles
// yet.
func (c *Cluster) upControl(ctx context.Context) error {
	for _, name := range []string{"etcd", "kube-apiserver", "gateway"} {
		if err := c.Control.Process(name).Ensure(ctx); err != nil {
			return err
		}
	}
	if err := c.WaitAPIServer(ctx); err != nil {
		return err
	}
	for _, name := range []string{"kube-controller-manager", "kube-scheduler"} {
		if err := c.Control.Process(name).Ensure(ctx); err != nil {
			return err
		}
	}
	if err := c.applyManifests(ctx); err != nil {
		return err
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	return c.Control.Process("kube-controller-manager").await(ctx, 5*time.Minute, func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// WaitAPIServer waits until the API server is ready.
func (c *Cluster) WaitAPIServer(ctx context.Context) error {
	return c.Control.Process("kube-apiserver").await(ctx, 5*time.Minute, func(ctx context.Context) error {
		client, err := c.Client()
		if err != nil {
			return err
		}
		return client.CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// RestoreAPIServer starts an API server that was stopped, and restarts the controller manager and the scheduler: after an
// outage, upstream's watches wait up to a minute, in which no job completes, no service gets endpoints and no pod gets a
// node. Idempotent.
func (c *Cluster) RestoreAPIServer(ctx context.Context) error {
	if err := c.Control.Process("kube-apiserver").Ensure(ctx); err != nil {
		return err
	}
	if err := c.WaitAPIServer(ctx); err != nil {
		return err
	}
	for _, name := range []string{"kube-controller-manager", "kube-scheduler"} {
		if err := c.Control.Process(name).Restart(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) applyManifests(ctx context.Context) error {
	entries, err := manifests.ReadDir("manifests")
	if err != nil {
		return err
	}
	dir := c.Control.Dir("objects")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, entry := range entries {
		data, err := manifests.ReadFile("manifests/" + entry.Name())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, entry.Name()), data, 0o644); err != nil {
			return err
		}
	}
	_, err = c.Kubectl(ctx, "apply", "-f", dir)
	return err
}

// Config returns the administrator's client configuration.
func (c *Cluster) Config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 200, 400
	return config, nil
}

// Client returns a client with the administrator's rights.
func (c *Cluster) Client() (*kubernetes.Clientset, error) {
	config, err := c.Config()
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(config)
}

// KubectlPath returns the path of the kubectl that was built.
func (c *Cluster) KubectlPath() string { return filepath.Join(c.Tools, "kubectl") }

// Kubectl runs kubectl as the administrator and returns its output.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return run(ctx, append([]string{c.KubectlPath(), "--kubeconfig=" + c.Kubeconfig()}, args...)...)
}

// waitNodesReady waits until every node has a pod CIDR and is Ready.
func (c *Cluster) waitNodesReady(ctx context.Context) error {
	client, err := c.Client()
	if err != nil {
		return err
	}
	for _, host := range c.Nodes {
		err := host.Process("kubelet").await(ctx, 5*time.Minute, func(ctx context.Context) error {
			node, err := client.CoreV1().Nodes().Get(ctx, host.Name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if node.Spec.PodCIDR == "" {
				return fmt.Errorf("node %s has no pod CIDR yet; kube-controller-manager assigns it: see %s", host.Name, c.Control.Process("kube-controller-manager").Log())
			}
			return nodeReady(node)
		})
		if err != nil {
			return err
		}
		if err := host.Process("proxy").await(ctx, 2*time.Minute, func(ctx context.Context) error {
			_, err := host.Exec(ctx, filepath.Join(c.Tools, "sample"), "get", "http://127.0.0.1:10256/healthz")
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// ShellLine returns the command that sets up kubectl in the user's shell.
func (c *Cluster) ShellLine() string {
	return strings.Join([]string{"export", "KUBECONFIG=" + c.Kubeconfig(), "PATH=" + c.Tools + ":$PATH"}, " ")
}
