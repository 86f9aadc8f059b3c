package nodejoin

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authorization "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/winkube/winkube/test/apiserver"
)

// caOf returns the CA of a cluster, as PEM.
func (b *bare) caOf(cluster *apiserver.Joinable) []byte {
	b.Helper()
	info := cluster.Get("/api/v1/namespaces/kube-public/configmaps/cluster-info").(*v1.ConfigMap)
	file, err := clientcmd.Load([]byte(info.Data["kubeconfig"]))
	b.must(err)
	return file.Clusters[""].CertificateAuthorityData
}

// TestTwoCAs: with kubeconfigs of a k3s cluster, which docs/guides/k3s-rke2.md makes, the kubelet trusts clients of both CAs: that of servers comes first, and
// that of clients, which signs the certificate by which the API server calls kubelets, second. With the first alone it trusts only that.
func TestTwoCAs(t *testing.T) {
	for _, system := range []string{"windows", "linux"} {
		b := newBare(t, system)
		clients, _ := start(t)
		both := append(bytes.Clone(b.caOf(b.Joinable)), b.caOf(clients)...)
		file := clientcmdapi.NewConfig()
		file.Clusters["c"] = &clientcmdapi.Cluster{Server: b.URL, CertificateAuthorityData: both}
		file.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: goodToken}
		file.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
		file.CurrentContext = "x"
		given := filepath.Join(t.TempDir(), "given.conf")
		b.must(clientcmd.WriteToFile(*file, given))
		b.cfg.Server, b.cfg.Token, b.cfg.Hashes, b.cfg.Kubeconfig, b.cfg.ProxyKubeconfig = "", "", nil, given, given
		b.May = func(_ string, what authorization.ResourceAttributes) bool { return what.Verb != "*" }
		b.must(b.join())
		flag := ""
		for _, f := range b.services["kubelet"] {
			if ca, ok := strings.CutPrefix(f, "--client-ca-file="); ok {
				flag = ca
			}
		}
		if got, err := os.ReadFile(flag); err != nil || !bytes.Equal(got, both) {
			t.Errorf("%s: the kubelet's CAs in %s are\n%s%v, want\n%s", system, flag, got, err, both)
		}
	}
}
