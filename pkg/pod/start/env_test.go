package start

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

func TestExpandAll(t *testing.T) {
	env := []pod.Env{{Name: "A", Value: "old"}, {Name: "A", Value: "new"}}
	if got := expandAll([]string{"x", "$(A)", "$$(A)"}, env); !slices.Equal(got, []string{"x", "new", "$(A)"}) {
		t.Error(got)
	}
	if expandAll(nil, env) != nil || expandAll([]string{}, env) != nil {
		t.Error("no words must stay nil: the image's are meant")
	}
}

func TestParseEnvFile(t *testing.T) {
	for _, test := range []struct {
		text, key string
		want      string
		found     bool
		err       string
	}{
		{text: "A='1'\nB='2'\n", key: "B", want: "2", found: true},
		{text: "A='1'", key: "A", want: "1", found: true},
		{text: "  \tA='1'  # why\n", key: "A", want: "1", found: true},
		{text: "# A='0'\n\n   \nA='1'\n", key: "A", want: "1", found: true},
		{text: "A='one\ntwo\n'\nB='3'", key: "A", want: "one\ntwo\n", found: true},
		{text: "A='one\ntwo'\nB='3'", key: "B", want: "3", found: true},
		{text: "A='one\r\ntwo'\r\nB='3'\r\n", key: "B", want: "3", found: true},
		{text: `A='a\n"$x" #='`, key: "A", want: `a\n"$x" #=`, found: true},
		{text: "A= '1'\nB='2'", key: "A", want: "", found: true},
		{text: "A= '1'\nB='2'", key: "B", want: "2", found: true},
		{text: "A='1'", key: "C"},
		{text: "", key: "C"},
		{text: "A='1'\nbad", key: "A", want: "1", found: true},
		{text: "A='1'\nbad", key: "C", err: "line 2 has no '='"},
		{text: "A='\n\n'\nbad", key: "C", err: "line 4 has no '='"},
		{text: "A=1", key: "A", err: "line 1: the value must be in single quotes"},
		{text: "A=", key: "A", err: "line 1: the value must be in single quotes"},
		{text: "A ='1'", key: "A", err: "line 1: want a name directly"},
		{text: "='1'", key: "A", err: "line 1: want a name directly"},
		{text: "A='1'x", key: "A", err: "line 1: only a comment may follow"},
		{text: "A='1\n'B='2'", key: "B", err: "line 2: only a comment may follow"},
		{text: "\nA='1", key: "A", err: "line 2: the single quote is never closed"},
	} {
		got, found, err := parseEnvFile(test.text, test.key)
		if got != test.want || found != test.found || (err == nil) != (test.err == "") || (err != nil && !strings.Contains(err.Error(), test.err)) {
			t.Errorf("%q of %q: got %q %v %v, want %q %v %s", test.key, test.text, got, found, err, test.want, test.found, test.err)
		}
	}
}

func FuzzParseEnvFile(f *testing.F) {
	for _, s := range []string{"A='1'\n", "A='1\n2' # c\nB='3'", "A= x\n", "#\n\n", "A='", "A\n='1'"} {
		f.Add(s, "B")
	}
	f.Fuzz(func(t *testing.T, text, key string) {
		if value, found, err := parseEnvFile(text, key); err == nil && found && strings.Contains(value, "'") {
			t.Errorf("value %q holds a quote", value)
		}
	})
}

func service(namespace, name, ip string, ports ...v1.ServicePort) *v1.Service {
	return &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1.ServiceSpec{ClusterIP: ip, Ports: ports}}
}

func TestServiceEnv(t *testing.T) {
	kubernetes := service("default", "kubernetes", "10.0.0.1", v1.ServicePort{Name: "https", Port: 443, Protocol: "TCP"})
	defaults := []*v1.Service{service("default", "web", "10.0.0.9", v1.ServicePort{Port: 1}), kubernetes}
	own := []*v1.Service{
		service("shop", "my-db", "fd00::2", v1.ServicePort{Port: 5432}, v1.ServicePort{Name: "admin-ui", Port: 80, Protocol: "UDP"}),
		service("shop", "headless", "None", v1.ServicePort{Port: 1}),
		service("shop", "external", ""),
		service("shop", "portless", "10.0.0.3"),
	}
	names := func(services []*v1.Service) string {
		var out []string
		for _, s := range services {
			out = append(out, s.Namespace+"/"+s.Name)
		}
		return strings.Join(out, " ")
	}
	hiding := append(slices.Clone(own), service("shop", "kubernetes", "10.0.0.4", v1.ServicePort{Port: 1}))
	for _, test := range []struct {
		own   []*v1.Service
		links bool
		want  string
	}{
		{own, true, "default/kubernetes shop/my-db"},
		{own, false, "default/kubernetes"},
		{defaults, true, "default/kubernetes default/web"},
		{hiding, true, "shop/kubernetes shop/my-db"},
		{hiding, false, "default/kubernetes"},
	} {
		if got := names(linkedServices(test.own, defaults, test.links)); got != test.want {
			t.Errorf("got %s, want %s", got, test.want)
		}
	}
	var lines []string
	for _, e := range serviceEnv(linkedServices(own, defaults, true)) {
		lines = append(lines, e.Name+"="+e.Value)
	}
	want := `KUBERNETES_SERVICE_HOST=10.0.0.1
KUBERNETES_SERVICE_PORT=443
KUBERNETES_SERVICE_PORT_HTTPS=443
KUBERNETES_PORT=tcp://10.0.0.1:443
KUBERNETES_PORT_443_TCP=tcp://10.0.0.1:443
KUBERNETES_PORT_443_TCP_PROTO=tcp
KUBERNETES_PORT_443_TCP_PORT=443
KUBERNETES_PORT_443_TCP_ADDR=10.0.0.1
MY_DB_SERVICE_HOST=fd00::2
MY_DB_SERVICE_PORT=5432
MY_DB_SERVICE_PORT_ADMIN_UI=80
MY_DB_PORT=tcp://[fd00::2]:5432
MY_DB_PORT_5432_TCP=tcp://[fd00::2]:5432
MY_DB_PORT_5432_TCP_PROTO=tcp
MY_DB_PORT_5432_TCP_PORT=5432
MY_DB_PORT_5432_TCP_ADDR=fd00::2
MY_DB_PORT_80_UDP=udp://[fd00::2]:80
MY_DB_PORT_80_UDP_PROTO=udp
MY_DB_PORT_80_UDP_PORT=80
MY_DB_PORT_80_UDP_ADDR=fd00::2`
	if got := strings.Join(lines, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func configMap(name string) v1.LocalObjectReference { return v1.LocalObjectReference{Name: name} }

func TestBuildEnv(t *testing.T) {
	yes := true
	from := func() envSources {
		return envSources{
			pod:        envPod(),
			configMaps: map[string]*v1.ConfigMap{"cm": {Data: map[string]string{"b": "2", "a": "1", "odd-key.x": "3"}}, "cm2": {Data: map[string]string{"a": "over"}}},
			secrets:    map[string]*v1.Secret{"s": {Data: map[string][]byte{"password": []byte("p$(A)w")}}},
			services:   []pod.Env{{Name: "SVC_SERVICE_HOST", Value: "10.0.0.7"}, {Name: "A", Value: "from service"}},
			addresses:  podspec.Addresses{Pod: addrs("10.1.0.5"), Host: addrs("192.168.0.1")},
			file: func(volume, path string) (string, bool, error) {
				if volume != "vol" {
					return "", false, errors.New("no such volume")
				}
				return map[string]string{"env": "K='v'\nE=''\n", "bad": "K"}[path], path == "env" || path == "bad", nil
			},
		}
	}
	cmKey := func(name, key string, optional *bool) *v1.EnvVarSource {
		return &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: configMap(name), Key: key, Optional: optional}}
	}
	secretKey := func(name, key string, optional *bool) *v1.EnvVarSource {
		return &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: configMap(name), Key: key, Optional: optional}}
	}
	fileKey := func(volume, path, key string, optional *bool) *v1.EnvVarSource {
		return &v1.EnvVarSource{FileKeyRef: &v1.FileKeySelector{VolumeName: volume, Path: path, Key: key, Optional: optional}}
	}
	fromCM := func(prefix, name string, optional *bool) v1.EnvFromSource {
		return v1.EnvFromSource{Prefix: prefix, ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: configMap(name), Optional: optional}}
	}
	fromSecret := func(prefix, name string, optional *bool) v1.EnvFromSource {
		return v1.EnvFromSource{Prefix: prefix, SecretRef: &v1.SecretEnvSource{LocalObjectReference: configMap(name), Optional: optional}}
	}
	const services = "SVC_SERVICE_HOST=10.0.0.7 A=from service"
	for _, test := range []struct {
		name    string
		envFrom []v1.EnvFromSource
		env     []v1.EnvVar
		want    string
		skipped string
		err     string
	}{
		{name: "nothing", want: services},
		{name: "literal hides a service's", env: []v1.EnvVar{{Name: "A", Value: "mine"}}, want: "A=mine SVC_SERVICE_HOST=10.0.0.7"},
		{name: "empty literal", env: []v1.EnvVar{{Name: "A"}}, want: "A= SVC_SERVICE_HOST=10.0.0.7"},
		{name: "earlier ones are seen, later ones not", env: []v1.EnvVar{{Name: "X", Value: "$(Y)$(A)$(SVC_SERVICE_HOST)"}, {Name: "Y", Value: "y$(X)"}},
			want: "X=$(Y)from service10.0.0.7 Y=y$(Y)from service10.0.0.7 " + services},
		{name: "itself", env: []v1.EnvVar{{Name: "X", Value: "1"}, {Name: "X", Value: "$(X)2"}}, want: "X=12 " + services},
		{name: "from config map", envFrom: []v1.EnvFromSource{fromCM("", "cm", nil)}, want: "a=1 b=2 odd-key.x=3 " + services},
		{name: "later source wins, place stays", envFrom: []v1.EnvFromSource{fromCM("", "cm", nil), fromCM("", "cm2", nil)}, want: "a=over b=2 odd-key.x=3 " + services},
		{name: "prefix", envFrom: []v1.EnvFromSource{fromCM("P_", "cm2", nil)}, want: "P_a=over " + services},
		{name: "prefix that is no name", envFrom: []v1.EnvFromSource{fromCM("P=", "cm2", nil)}, want: services, skipped: "P=a"},
		{name: "env over envFrom", envFrom: []v1.EnvFromSource{fromCM("", "cm2", nil)}, env: []v1.EnvVar{{Name: "a", Value: "$(a)!"}}, want: "a=over! " + services},
		{name: "from secret is not expanded", envFrom: []v1.EnvFromSource{fromSecret("", "s", nil)}, want: "password=p$(A)w " + services},
		{name: "from missing", envFrom: []v1.EnvFromSource{fromCM("", "none", nil)}, err: `configmap "none" not found`},
		{name: "from missing secret", envFrom: []v1.EnvFromSource{fromSecret("", "none", nil)}, err: `secret "none" not found`},
		{name: "from missing but optional", envFrom: []v1.EnvFromSource{fromCM("", "none", &yes), fromSecret("", "none", &yes)}, want: services},
		{name: "field", env: []v1.EnvVar{{Name: "IP", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "status.podIP"}}}}, want: "IP=10.1.0.5 " + services},
		{name: "bad field", env: []v1.EnvVar{{Name: "IP", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "status.x"}}}}, err: "field label not supported: status.x"},
		{name: "resource", env: []v1.EnvVar{{Name: "R", ValueFrom: &v1.EnvVarSource{ResourceFieldRef: &v1.ResourceFieldSelector{Resource: "requests.cpu"}}}}, want: "R=0 " + services},
		{name: "config map key", env: []v1.EnvVar{{Name: "X", ValueFrom: cmKey("cm", "b", nil)}}, want: "X=2 " + services},
		{name: "missing config map", env: []v1.EnvVar{{Name: "X", ValueFrom: cmKey("none", "b", nil)}}, err: `configmap "none" not found`},
		{name: "missing key", env: []v1.EnvVar{{Name: "X", ValueFrom: cmKey("cm", "none", nil)}}, err: "couldn't find key none in ConfigMap shop/cm"},
		{name: "optional", env: []v1.EnvVar{{Name: "X", ValueFrom: cmKey("cm", "none", &yes)}, {Name: "Y", ValueFrom: secretKey("none", "k", &yes)}}, want: services},
		{name: "secret key", env: []v1.EnvVar{{Name: "X", ValueFrom: secretKey("s", "password", nil)}, {Name: "Y", Value: "[$(X)]"}}, want: "X=p$(A)w Y=[p$(A)w] " + services},
		{name: "missing secret", env: []v1.EnvVar{{Name: "X", ValueFrom: secretKey("none", "k", nil)}}, err: `secret "none" not found`},
		{name: "missing secret key", env: []v1.EnvVar{{Name: "X", ValueFrom: secretKey("s", "none", nil)}}, err: "couldn't find key none in Secret shop/s"},
		{name: "file", env: []v1.EnvVar{{Name: "X", ValueFrom: fileKey("vol", "env", "K", nil)}}, want: "X=v " + services},
		{name: "file without key", env: []v1.EnvVar{{Name: "X", ValueFrom: fileKey("vol", "env", "N", nil)}}, err: `environment variable key "N" not found in file "env" of volume "vol"`},
		{name: "file that is not there", env: []v1.EnvVar{{Name: "X", ValueFrom: fileKey("vol", "none", "N", nil)}}, err: `key "N" not found in file "none"`},
		{name: "optional file", env: []v1.EnvVar{{Name: "X", ValueFrom: fileKey("vol", "none", "N", &yes)}}, want: services},
		{name: "bad file", env: []v1.EnvVar{{Name: "X", ValueFrom: fileKey("vol", "bad", "N", &yes)}}, err: "cannot parse environment file bad of volume vol: line 1"},
		{name: "bad volume", env: []v1.EnvVar{{Name: "X", ValueFrom: fileKey("none", "env", "N", &yes)}}, err: "no such volume"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := &v1.Container{Name: "app", EnvFrom: test.envFrom, Env: test.env}
			env, skipped, err := buildEnv(c, from())
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("got %v, want %s", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var words []string
			for _, e := range env {
				words = append(words, e.Name+"="+e.Value)
			}
			if got := strings.Join(words, " "); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			if got := strings.Join(skipped, " "); got != test.skipped {
				t.Errorf("skipped %q, want %q", got, test.skipped)
			}
			configMaps, secrets := envReferences(c)
			if strings.Contains(fmt.Sprint(test.name), "config map") && len(configMaps)+len(secrets) != 1 {
				t.Errorf("references %v %v", configMaps, secrets)
			}
		})
	}
}

func envPod() *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web-0", Namespace: "shop", UID: "u1",
			Labels:      map[string]string{"app": "web", "example.com/tier": "front"},
			Annotations: map[string]string{"b": "x\"y\n", "a": "1"},
		},
		Spec: v1.PodSpec{
			NodeName: "node-a", ServiceAccountName: "robot",
			Containers: []v1.Container{{Name: "app"}, {Name: "other", Resources: v1.ResourceRequirements{
				Limits:   v1.ResourceList{"cpu": resource.MustParse("250m"), "memory": resource.MustParse("64Mi"), "hugepages-2Mi": resource.MustParse("4Mi")},
				Requests: v1.ResourceList{"cpu": resource.MustParse("125m"), "memory": resource.MustParse("32Mi"), "ephemeral-storage": resource.MustParse("1Gi")},
			}}},
			InitContainers: []v1.Container{{Name: "init", Resources: v1.ResourceRequirements{Limits: v1.ResourceList{"cpu": resource.MustParse("3")}}}},
		},
	}
}

func addrs(words ...string) []netip.Addr {
	var out []netip.Addr
	for _, w := range words {
		out = append(out, netip.MustParseAddr(w))
	}
	return out
}
