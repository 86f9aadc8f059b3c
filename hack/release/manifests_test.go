package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	node "k8s.io/api/node/v1"
	rbac "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"

	proxy "github.com/winkube/winkube/cmd/kube-proxy/app"
	"github.com/winkube/winkube/pkg/nodejoin"
	"github.com/winkube/winkube/test/output"
)

var manifestDir = filepath.Join("..", "..", "build", "kubernetes")

// objects reads a manifest as an API server does that accepts no unknown field.
func objects(t *testing.T, text []byte) (all []runtime.Object) {
	t.Helper()
	strict := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for documents := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		object, _, err := strict.Decode(document, nil, nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		all = append(all, object)
	}
}

func manifest(t *testing.T, name string) []runtime.Object {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(manifestDir, name))
	if err != nil {
		t.Fatal(err)
	}
	return objects(t, text)
}

// only returns the objects of one type.
func only[T runtime.Object](all []runtime.Object) (some []T) {
	for _, o := range all {
		if one, ok := o.(T); ok {
			some = append(some, one)
		}
	}
	return some
}

// TestProxyRights: pods of the proxy may do what the proxy of `kubelet node join` may, but for the renewal of tokens, which the kubelet does for pods.
func TestProxyRights(t *testing.T) {
	joined, pods := manifest(t, "node-join.yaml"), manifest(t, "proxy-daemonset.yaml")
	have, want := only[*rbac.ClusterRoleBinding](pods), only[*rbac.ClusterRoleBinding](joined)
	if len(have) != 1 || len(want) != 1 || have[0].RoleRef != want[0].RoleRef {
		t.Fatalf("pods are bound to %+v, joined nodes to %+v", have, want)
	}
	accounts := only[*core.ServiceAccount](pods)
	if len(accounts) != 1 || len(have[0].Subjects) != 1 || have[0].Subjects[0] != (rbac.Subject{Kind: "ServiceAccount", Name: accounts[0].Name, Namespace: accounts[0].Namespace}) {
		t.Errorf("the role is bound to %+v, the accounts are %+v", have[0].Subjects, accounts)
	}
	if other := only[*core.ServiceAccount](joined)[0]; accounts[0].Name == other.Name {
		t.Errorf("pods have account %s, whose tokens must be bound to Nodes", other.Name)
	}
	if more := len(only[*rbac.RoleBinding](pods)) + len(only[*rbac.Role](pods)) + len(only[*rbac.ClusterRole](pods)); more != 0 {
		t.Errorf("pods have %d more roles and bindings", more)
	}
}

// TestProxyDaemonSet: it runs this version's image with flags that the proxy has, on no node that has the proxy as a service, with the rights that pages name.
func TestProxyDaemonSet(t *testing.T) {
	all := manifest(t, "proxy-daemonset.yaml")
	pod := only[*apps.DaemonSet](all)[0].Spec.Template.Spec
	version, err := os.ReadFile(filepath.Join("..", "VERSION"))
	if err != nil {
		t.Fatal(err)
	}
	c := pod.Containers[0]
	if want := imageName("proxy", strings.TrimSpace(string(version))); c.Image != want || c.ImagePullPolicy != core.PullNever {
		t.Errorf("image %s, %s; want %s, which no registry has", c.Image, c.ImagePullPolicy, want)
	}
	if err := proxy.Command().ParseFlags(c.Args); err != nil {
		t.Error(err)
	}
	if value := pod.NodeSelector[nodejoin.ProxyLabel]; value == "" || value == "true" || pod.NodeSelector["kubernetes.io/os"] != "linux" {
		t.Errorf("it runs on nodes with %v", pod.NodeSelector)
	}
	if !pod.HostNetwork || pod.HostPID || pod.ServiceAccountName != only[*core.ServiceAccount](all)[0].Name {
		t.Errorf("the pod is %+v", pod)
	}
	want := core.SecurityContext{ReadOnlyRootFilesystem: new(true), Capabilities: &core.Capabilities{Drop: []core.Capability{"ALL"},
		Add: []core.Capability{"NET_ADMIN", "NET_RAW", "NET_BIND_SERVICE", "BPF"}}}
	if !reflect.DeepEqual(*c.SecurityContext, want) {
		t.Errorf("its rights are %+v", c.SecurityContext)
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "guides", "services.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range want.Capabilities.Add {
		if !strings.Contains(string(page), "CAP_"+string(one)) {
			t.Errorf("docs/guides/services.md does not name CAP_%s", one)
		}
	}
	for _, m := range c.VolumeMounts {
		if writable := m.Name == "reports"; m.ReadOnly == writable {
			t.Errorf("mount %s: read-only is %t", m.MountPath, m.ReadOnly)
		}
	}
}

func TestRuntimeClasses(t *testing.T) {
	for _, class := range only[*node.RuntimeClass](manifest(t, "runtimeclasses.yaml")) {
		if class.Handler != "hyperv" || class.Scheduling.NodeSelector["kubernetes.io/os"] != "windows" {
			t.Errorf("%+v", class)
		}
	}
}

// kubectlPath is kubectl, as the test cluster builds it or the machine has it.
func kubectlPath(t *testing.T) string {
	t.Helper()
	built, err := filepath.Abs(filepath.Join("..", "..", "_output", "tools", "kubectl"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(built); err == nil {
		return built
	}
	found, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("there is no kubectl: make up builds it")
	}
	return found
}

// TestKustomization: kubectl makes of the kustomization what the manifests have, and the patch fits a kustomization with kubeadm's DaemonSet.
func TestKustomization(t *testing.T) {
	kubectl := kubectlPath(t)
	made, err := output.Of(exec.CommandContext(t.Context(), kubectl, "kustomize", manifestDir))
	if err != nil {
		t.Fatal(err)
	}
	var want int
	for _, name := range []string{"node-join.yaml", "proxy-daemonset.yaml", "runtimeclasses.yaml"} {
		want += len(manifest(t, name))
	}
	if have := objects(t, []byte(made.Stdout)); len(have) != want {
		t.Errorf("%d objects, want %d:\n%s", len(have), want, made.Stdout)
	}

	plain, err := os.ReadFile(filepath.Join(manifestDir, "proxy-daemonset.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	older, full := patched(t, kubectl, "without-bpf-patch.yaml", string(plain)), only[*apps.DaemonSet](objects(t, plain))[0].Spec.Template.Spec
	have, all := &older.Containers[0].SecurityContext.Capabilities.Add, full.Containers[0].SecurityContext.Capabilities.Add
	if !slices.Equal(append(slices.Clone(*have), "BPF"), all) {
		t.Errorf("without BPF: %v, with it %v", *have, all)
	}
	if *have = all; !reflect.DeepEqual(older, full) {
		t.Errorf("without BPF more differs: %+v, %+v", older, full)
	}

	spec := patched(t, kubectl, "kube-proxy-patch.yaml", "apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: kube-proxy, namespace: kube-system}\nspec:\n  selector: {matchLabels: {k8s-app: kube-proxy}}\n"+
		"  template:\n    metadata: {labels: {k8s-app: kube-proxy}}\n    spec: {nodeSelector: {kubernetes.io/os: linux}, containers: [{name: kube-proxy, image: x}]}\n")
	terms := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if len(terms) != 1 || !slices.EqualFunc(terms[0].MatchExpressions, []core.NodeSelectorRequirement{{Key: nodejoin.ProxyLabel, Operator: core.NodeSelectorOpDoesNotExist}},
		func(a, b core.NodeSelectorRequirement) bool { return reflect.DeepEqual(a, b) }) || spec.NodeSelector["kubernetes.io/os"] != "linux" || len(spec.Containers) != 1 {
		t.Errorf("patched: %+v", spec)
	}
}

// patched is the pod of a DaemonSet to which kubectl applied one of our patches.
func patched(t *testing.T, kubectl, name, daemonSet string) core.PodSpec {
	t.Helper()
	dir := t.TempDir()
	patch, err := os.ReadFile(filepath.Join(manifestDir, name))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"kustomization.yaml": "resources: [all.yaml]\npatches:\n  - path: patch.yaml\n", "patch.yaml": string(patch), "all.yaml": daemonSet} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	made, err := output.Of(exec.CommandContext(t.Context(), kubectl, "kustomize", dir))
	if err != nil {
		t.Fatal(err)
	}
	return only[*apps.DaemonSet](objects(t, []byte(made.Stdout)))[0].Spec.Template.Spec
}
