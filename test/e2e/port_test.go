package e2e

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/winkube/winkube/test/lab"
)

// portRights maps a verb and a sub-resource of nodes to the paths of the kubelet's port that may then be read with GET.
var portRights = map[string][]string{
	"get metrics":  {"/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/resource"},
	"get stats":    {"/stats/summary"},
	"get log":      {"/logs/"},
	"get healthz":  {"/healthz"},
	"get pods":     {"/pods", "/runningpods/"},
	"get configz":  {"/configz"},
	"get proxy":    {"/healthz", "/pods", "/runningpods/", "/configz", "/containerLogs/a/b/c", "/debug/pods", "/debug/pprof/cmdline", "/unknown"},
	"create proxy": {"/exec/a/b/c", "/attach/a/b/c", "/portForward/a/b", "/run/a/b/c"},
}

// TestKubeletPort requests every path of a kubelet's port with every kind of credential. The API server decides about
// all of them: RBAC, the Node authorizer, TokenReview.
func TestKubeletPort(t *testing.T) {
	s := newSpace(t)
	node, other := cluster.Nodes[0], cluster.Nodes[1]
	base := "https://" + node.Addr.String() + ":10250"
	type credential struct {
		name   string
		client *http.Client
		status func(path string) int // 0: anything except 401 and 403
	}
	always := func(status int) func(string) int { return func(string) int { return status } }
	credentials := []credential{
		{"none", s.portClient(node, &rest.Config{}), always(401)},
		{"guess", s.portClient(node, &rest.Config{BearerToken: "guess"}), always(401)},
		{"server", s.portClient(node, &rest.Config{TLSClientConfig: rest.TLSClientConfig{CertFile: other.PKI("kubelet-server.crt"), KeyFile: other.PKI("kubelet-server.key")}}), always(401)},
		{"this node", s.portClient(node, s.kubeconfig(node.PKI("kubelet.kubeconfig"))), always(403)},
		{"other node", s.portClient(node, s.kubeconfig(other.PKI("kubelet.kubeconfig"))), always(403)},
		{"no rights", s.portClient(node, s.account("", node.Name)), always(403)},
		{"admin", s.portClient(node, s.kubeconfig(cluster.Kubeconfig())), always(0)},
	}
	var paths []string
	for right, opens := range portRights {
		paths = append(paths, opens...)
		credentials = append(credentials, credential{right, s.portClient(node, s.account(right, node.Name)), func(path string) int {
			if slices.Contains(opens, path) {
				return 0
			}
			return 403
		}})
	}
	slices.Sort(paths)
	slices.SortStableFunc(credentials[7:], func(a, b credential) int { return cmp.Compare(a.name, b.name) })
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, c := range credentials {
		fmt.Fprintf(table, "\t%s", c.name)
	}
	for _, path := range slices.Compact(paths) {
		fmt.Fprintf(table, "\n%s", path)
		for _, c := range credentials {
			response, err := c.client.Get(base + path)
			s.must(err)
			_, _ = io.Copy(io.Discard, response.Body)
			response.Body.Close()
			got, want := response.StatusCode, c.status(path)
			if want != 0 && got != want || want == 0 && (got == 401 || got == 403 || got >= 500) {
				t.Errorf("%s with %s: got %d, want %d", path, c.name, got, want)
			}
			fmt.Fprintf(table, "\t%d", got)
		}
	}
	s.must(table.Flush())
	t.Logf("GET by credential; the last %d each have that right to a sub-resource of nodes:\n%s", len(portRights), text.String())
}

func (s *space) kubeconfig(file string) *rest.Config {
	s.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", file)
	s.must(err)
	return config
}

// portClient uses the credentials of config and connects from node. It does not verify the server.
func (s *space) portClient(node *lab.Host, config *rest.Config) *http.Client {
	s.Helper()
	dial := func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = within(node, func() (err error) {
			conn, err = new(net.Dialer).DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
	config = &rest.Config{Dial: dial, BearerToken: config.BearerToken, Timeout: time.Minute, TLSClientConfig: rest.TLSClientConfig{Insecure: true, CertFile: config.CertFile, KeyFile: config.KeyFile,
		CertData: config.CertData, KeyData: config.KeyData}}
	client, err := rest.HTTPClientFor(config)
	s.must(err)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	s.Cleanup(client.CloseIdleConnections)
	return client
}

// account creates a service account with one right ("get stats": to get nodes/stats; "": none), and waits until the API
// server allows that: the kubelet caches its answers.
func (s *space) account(right, node string) *rest.Config {
	s.Helper()
	ctx := s.Context()
	verb, sub, _ := strings.Cut(right, " ")
	name := "may-" + cmp.Or(strings.ReplaceAll(right, " ", "-"), "nothing")
	_, err := client.CoreV1().ServiceAccounts(s.name).Create(ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	s.must(err)
	token, err := client.CoreV1().ServiceAccounts(s.name).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	s.must(err)
	config := s.kubeconfig(cluster.Kubeconfig())
	config = &rest.Config{Host: config.Host, BearerToken: token.Status.Token, TLSClientConfig: rest.TLSClientConfig{CAData: config.CAData, CAFile: config.CAFile}}
	if sub == "" {
		return config
	}
	meta := metav1.ObjectMeta{Name: s.name + "-" + name}
	role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes/" + sub}, Verbs: []string{verb}}}}
	_, err = client.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{})
	s.must(err)
	s.Cleanup(func() {
		_ = client.RbacV1().ClusterRoleBindings().Delete(context.Background(), meta.Name, metav1.DeleteOptions{})
		if err := client.RbacV1().ClusterRoles().Delete(context.Background(), meta.Name, metav1.DeleteOptions{}); err != nil {
			s.Error(err)
		}
	})
	_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: s.name, Name: name}}}, metav1.CreateOptions{})
	s.must(err)
	as, err := kubernetes.NewForConfig(config)
	s.must(err)
	s.eventually(time.Minute, name, func(ctx context.Context) error {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Version: "v1", Resource: "nodes", Subresource: sub, Name: node}}}
		answer, err := as.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err == nil && !answer.Status.Allowed {
			err = fmt.Errorf("not yet: %s", answer.Status.Reason)
		}
		return err
	})
	return config
}
