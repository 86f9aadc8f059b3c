package start

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

func TestSandbox(t *testing.T) {
	fqdn := func(p *v1.Pod) {
		p.Spec.Subdomain, p.Spec.Hostname, p.Spec.SetHostnameAsFQDN = "s", strings.Repeat("h", 50), ptr(true)
	}
	for _, test := range []struct {
		name   string
		pod    *v1.Pod
		change func(*stage)
		want   string
		err    string // and the waiting state
		told   string
	}{
		{
			name: "common", pod: stagePod(),
			want: "&{winkube web {[10.96.0.10] [shop.svc.cluster.local svc.cluster.local cluster.local corp.example] [ndots:5]} [{/pods/u1/resolv.conf /etc/resolv.conf false}]  }",
		},
		{
			name: "host network", pod: stagePod(func(p *v1.Pod) { p.Spec.HostNetwork = true; p.Spec.DNSPolicy = v1.DNSClusterFirst }), change: func(s *stage) { s.broken["join"] = errors.New("not asked") },
			want: "&{host  {[192.168.0.53] [corp.example] []} [{/pods/u1/resolv.conf /etc/resolv.conf false}]  }",
		},
		{
			name: "Windows", pod: stagePod(func(p *v1.Pod) { p.Spec.DNSPolicy = v1.DNSDefault }), change: func(s *stage) { s.cfg.Platform.OS = "windows"; s.cfg.ResolvConf = "" },
			want: "&{winkube web {[] [] []} []  }",
		},
		{
			name: "warning", pod: stagePod(func(p *v1.Pod) { p.Spec.DNSPolicy = v1.DNSClusterFirst }), change: func(s *stage) { s.cfg.ClusterDNS = nil },
			want: "&{winkube web {[192.168.0.53] [corp.example] []} [{/pods/u1/resolv.conf /etc/resolv.conf false}]  }",
			told: `Warning MissingClusterDNS pod: this node has no cluster DNS address (clusterDNS), so the policy "ClusterFirst" cannot be kept; the pod gets "Default" instead`,
		},
		{
			name: "no network", pod: stagePod(), change: func(s *stage) { s.broken["join"] = errors.New("no pod CIDR yet") },
			err: "NetworkNotReady: network is not ready: no pod CIDR yet -> ContainerCreating ", told: "Warning NetworkNotReady pod: network is not ready: no pod CIDR yet",
		},
		{
			name: "no volume", pod: stagePod(), change: func(s *stage) { s.broken["prepare"] = errors.New(`volume "v": secret "x" not found`) },
			err: `FailedMount: volume "v": secret "x" not found -> ContainerCreating `, told: `Warning FailedMount pod: volume "v": secret "x" not found`,
		},
		{
			name: "name too long", pod: stagePod(fqdn), err: "FailedCreatePodSandBox: Failed to create pod sandbox: failed to construct FQDN", told: "Warning FailedCreatePodSandBox pod: Failed to create pod sandbox: failed to construct FQDN",
		},
		{
			name: "no resolver file", pod: stagePod(), change: func(s *stage) { s.cfg.ResolvConf += ".gone" },
			err: "FailedCreatePodSandBox: Failed to create pod sandbox: cannot read resolver configuration (resolvConf): open ", told: "Warning FailedCreatePodSandBox pod: Failed",
		},
		{
			name: "disk full", pod: stagePod(), change: func(s *stage) { s.broken["write"] = errors.New("disk full") },
			err: "FailedCreatePodSandBox: cannot write /etc/resolv.conf of the pod: disk full -> ContainerCreating ", told: "Warning FailedCreatePodSandBox pod: cannot write",
		},
		{
			name: "RuntimeClass", pod: stagePod(class("strong")), change: func(s *stage) { s.classes = map[string]string{"strong": "runsc"} },
			want: "&{winkube web {[10.96.0.10] [shop.svc.cluster.local svc.cluster.local cluster.local corp.example] [ndots:5]} [{/pods/u1/resolv.conf /etc/resolv.conf false}]  runsc}",
		},
		{
			name: "no RuntimeClass", pod: stagePod(class("strong")),
			err:  `FailedCreatePodSandBox: Failed to create pod sandbox: failed to get sandbox runtime: runtimeclasses.node.k8s.io "strong" not found`,
			told: "Warning FailedCreatePodSandBox pod: Failed to create pod sandbox: failed to get sandbox runtime",
		},
		{
			name: "handler on Windows", pod: stagePod(class("strong")), change: func(s *stage) { s.classes, s.cfg.Platform.OS = map[string]string{"strong": "runsc"}, "windows" },
			err:  `FailedCreatePodSandBox: Failed to create pod sandbox: failed to get sandbox runtime: RuntimeClass strong has handler "runsc", which does not exist on Windows; want hyperv or process`,
			told: "Warning FailedCreatePodSandBox pod: Failed to create pod sandbox: failed to get sandbox runtime",
		},
		{
			name: "refused", pod: stagePod(func(p *v1.Pod) { p.Spec.HostUsers = ptr(false) }),
			err:  "FailedCreatePodSandBox: spec.hostUsers: false is not possible here: Docker cannot give a pod its own user namespace; remove the field (userns-remap in the engine's daemon.json gives all pods one) -> ContainerCreating ",
			told: "Warning FailedCreatePodSandBox pod: spec.hostUsers: false",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStage(t)
			if test.change != nil {
				test.change(s)
			}
			in, err := s.resolver().Sandbox(t.Context(), test.pod)
			if got := failure(t, err); !strings.HasPrefix(got, test.err) || (test.err == "") != (got == "") {
				t.Errorf("got  %s\nwant %s", got, test.err)
			}
			if err == nil && fmt.Sprint(in) != test.want {
				t.Errorf("got  %v\nwant %s", in, test.want)
			}
			if got := s.told(); !strings.HasPrefix(got, test.told) || (got == "") != (test.told == "") {
				t.Errorf("told %s\nwant %s", got, test.told)
			}
		})
	}
}

// failure prints a StartError and the waiting state for it.
func failure(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	var start *pod.StartError
	if !errors.As(err, &start) {
		t.Errorf("%v is no StartError", err)
		return err.Error()
	}
	reason, message := start.Waiting()
	return fmt.Sprintf("%v -> %s %s", err, reason, message)
}

func TestContainer(t *testing.T) {
	s := newStage(t)
	p := stagePod(container(func(c *v1.Container) {
		c.Command, c.Args = []string{"/app", "$(A)"}, []string{"$(DB_SERVICE_HOST)", "$$(A)", "$(NONE)"}
		c.Env = []v1.EnvVar{{Name: "A", Value: "1"}, {Name: "IP", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "status.podIP"}}}}
		c.VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data"}}
		c.Resources.Requests = v1.ResourceList{"memory": resource.MustParse("1Gi")}
	}))
	in, err := s.resolver().Container(t.Context(), p, &p.Spec.Containers[0], inSandbox1)
	if err != nil {
		t.Fatal(err)
	}
	want := `image {sha256:1 docker://sha256:1 1000   42}
entrypoint [/app 1]
args [10.96.0.2 $(A) $(NONE)]
env A=1 IP=10.1.0.5 (14 more)
mount {data /vol/data/16 /data false  false false}
file {/pods/u1/etc-hosts /etc/hosts false}
file {/pods/u1/resolv.conf /etc/resolv.conf false}
sandbox box <nil>
termination /pods/u1/containers/app/termination-2
oom 900`
	if got := printInputs(in); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got, want := s.files["resolv.conf"], "644 search shop.svc.cluster.local svc.cluster.local cluster.local corp.example\nnameserver 10.96.0.10\noptions ndots:5\n"; got != want {
		t.Errorf("resolv.conf is\n%s\nwant\n%s", got, want)
	}
	if got := s.files["etc-hosts"]; !strings.HasSuffix(got, "\n10.1.0.5\tweb\n") {
		t.Errorf("hosts is\n%s", got)
	}
	if got, want := slices.Sorted(maps.Keys(s.files)), []string{"containers/app/termination-2", "etc-hosts", "resolv.conf"}; !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	if got, want := s.told(), `Normal Pulled spec.containers{app}: Container image "app:1" already present on machine and can be accessed by the pod`; got != want {
		t.Errorf("told\n%s\nwant\n%s", got, want)
	}
	s.node = &v1.Node{Status: v1.NodeStatus{Capacity: v1.ResourceList{"memory": resource.MustParse("2Gi")}}}
	if in, err := s.resolver().Container(t.Context(), p, &p.Spec.Containers[0], inSandbox1); err != nil || in.OOMScoreAdj != 500 {
		t.Errorf("of the node's capacity: %v %v", in, err)
	}
}

func printInputs(in *pod.Inputs) string {
	var b strings.Builder
	fmt.Fprintf(&b, "image %v\nentrypoint %v\nargs %v\nenv", in.Image, in.Entrypoint, in.Args)
	for _, e := range in.Env[:min(len(in.Env), 2)] {
		fmt.Fprintf(&b, " %s=%s", e.Name, e.Value)
	}
	fmt.Fprintf(&b, " (%d more)\n", max(0, len(in.Env)-2))
	for _, m := range in.Mounts {
		fmt.Fprintf(&b, "mount %v\n", m)
	}
	for _, f := range in.Files {
		fmt.Fprintf(&b, "file %v\n", f)
	}
	fmt.Fprintf(&b, "sandbox %s %v\ntermination %s\noom %d", in.SandboxID, in.Sandbox, in.TerminationLog, in.OOMScoreAdj)
	return b.String()
}

func TestContainerFiles(t *testing.T) {
	mounts := func(paths ...string) func(*v1.Pod) {
		return container(func(c *v1.Container) {
			for _, p := range paths {
				c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: "v", MountPath: p})
			}
		})
	}
	const hosts, conf = "{/pods/u1/etc-hosts /etc/hosts false}", "{/pods/u1/resolv.conf /etc/resolv.conf false}"
	for _, test := range []struct {
		name  string
		pod   *v1.Pod
		at    pod.Attempt
		files string
		log   string
	}{
		{name: "common", pod: stagePod(), at: inSandbox1, files: "[" + hosts + " " + conf + "]", log: "/pods/u1/containers/app/termination-2"},
		{name: "own hosts", pod: stagePod(mounts("/etc/hosts")), at: inSandbox1, files: "[" + conf + "]", log: "/pods/u1/containers/app/termination-2"},
		{name: "own resolv.conf and log", pod: stagePod(mounts("/etc/resolv.conf/", "/dev//termination-log")), at: inSandbox1, files: "[" + hosts + "]"},
		{name: "own log at another path", pod: stagePod(mounts("/dev/termination-log"), container(func(c *v1.Container) { c.TerminationMessagePath = "/log" })), at: inSandbox1,
			files: "[" + hosts + " " + conf + "]", log: "/pods/u1/containers/app/termination-2"},
		{name: "no sandbox", pod: stagePod(), at: pod.Attempt{Kind: podspec.App}, files: "[" + hosts + " " + conf + "]", log: "/pods/u1/containers/app/termination-0"},
	} {
		s := newStage(t)
		in, err := s.resolver().Container(t.Context(), test.pod, &test.pod.Spec.Containers[0], test.at)
		if err != nil {
			t.Errorf("%s: %v", test.name, err)
			continue
		}
		if got := fmt.Sprint(in.Files); got != test.files || in.TerminationLog != test.log {
			t.Errorf("%s: got %s %s, want %s %s", test.name, got, in.TerminationLog, test.files, test.log)
		}
		if (test.at.SandboxID == "") != (in.Sandbox != nil) {
			t.Errorf("%s: sandbox inputs %v", test.name, in.Sandbox)
		}
		if in.Sandbox != nil && (in.Sandbox.Network != "winkube" || in.Sandbox.Hostname != "web" || len(in.Sandbox.Files) > 0) {
			t.Errorf("%s: sandbox inputs %v", test.name, in.Sandbox)
		}
	}
}

func TestHostNetworkHostsFile(t *testing.T) {
	s := newStage(t)
	r := s.resolver()
	p := stagePod(func(p *v1.Pod) {
		p.Spec.HostNetwork = true
		p.Spec.HostAliases = []v1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"x"}}}
	})
	at := pod.Attempt{Kind: podspec.App, SandboxID: "box"}
	if _, err := r.Container(t.Context(), p, &p.Spec.Containers[0], at); err != nil {
		t.Fatalf("a host without hosts file: %v", err)
	}
	if err := os.WriteFile(r.hostsPath, []byte("127.0.0.1 localhost\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Container(t.Context(), p, &p.Spec.Containers[0], at); err != nil {
		t.Fatal(err)
	}
	if got, want := s.files["etc-hosts"], "644 # Kubernetes-managed hosts file (host network).\n127.0.0.1 localhost\n\n# Entries added by HostAliases.\n1.2.3.4\tx\n"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestContainerImages(t *testing.T) {
	image := func(name string, policy v1.PullPolicy) func(*v1.Pod) {
		return container(func(c *v1.Container) { c.Image, c.ImagePullPolicy = name, policy })
	}
	secrets := func(names ...string) func(*v1.Pod) {
		return func(p *v1.Pod) {
			for _, n := range names {
				p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, configMap(n))
			}
		}
	}
	const at = " spec.containers{app}: "
	for _, test := range []struct {
		name   string
		pod    *v1.Pod
		change func(*stage)
		err    string
		told   []string
	}{
		{name: "present", pod: stagePod(image("app:1", v1.PullIfNotPresent)), told: []string{"Normal Pulled" + at + `Container image "app:1" already present on machine and can be accessed by the pod`}},
		{name: "present, never", pod: stagePod(image("app:1", v1.PullNever)), told: []string{"Normal Pulled" + at + `Container image "app:1" already present on machine and can be accessed by the pod`}},
		{name: "absent", pod: stagePod(image("new:1", v1.PullIfNotPresent)), told: []string{"Normal Pulling" + at + `Pulling image "new:1"`, "pull new:1 []",
			"Normal Pulled" + at + `Successfully pulled image "new:1" in 1.5s (1.5s including waiting). Image size: 7 bytes.`}},
		{name: "absent, never", pod: stagePod(image("new:1", v1.PullNever)), err: `ErrImageNeverPull: Container image "new:1" is not present with pull policy of Never -> ErrImageNeverPull`,
			told: []string{"Warning ErrImageNeverPull" + at + `Container image "new:1" is not present with pull policy of Never`, "Warning Failed" + at + "Error: ErrImageNeverPull"}},
		{name: "always by tag", pod: stagePod(image("app", "")), told: []string{"Normal Pulling" + at + `Pulling image "app"`, "pull app:latest []", "Normal Pulled" + at}},
		{name: "unknown", pod: stagePod(image("none:1", "")), err: "ErrImagePull: manifest unknown -> ErrImagePull manifest unknown",
			told: []string{"Normal Pulling", "pull none:1 []", "Warning Failed" + at + `Failed to pull image "none:1": manifest unknown`, "Warning Failed" + at + "Error: ErrImagePull"}},
		{name: "registry down", pod: stagePod(image("down:1", "")), err: "RegistryUnavailable: image pull failed for down:1 because the registry is unavailable",
			told: []string{"Normal Pulling", "pull down:1 []", "Warning Failed", "Warning Failed" + at + "Error: RegistryUnavailable"}},
		{name: "no name", pod: stagePod(image("Bad Name", "")), err: `InvalidImageName: Failed to apply default image tag "Bad Name": couldn't parse image name "Bad Name"`, told: []string{"Warning InspectFailed" + at, "Warning Failed" + at + "Error: InvalidImageName"}},
		{name: "store broken", pod: stagePod(image("app:1", "")), change: func(s *stage) { s.broken["lookup"] = errors.New("engine hangs") },
			err: `ImageInspectError: Failed to inspect image "app:1": engine hangs -> ImageInspectError`, told: []string{"Warning InspectFailed" + at, "Warning Failed" + at + "Error: ImageInspectError"}},
		{name: "with a secret", pod: stagePod(image("new:1", ""), secrets("pull", "")), told: []string{"Normal Pulling", "pull new:1 [credential for https://index.docker.io/v1/]", "Normal Pulled"}},
		{name: "with bad secrets", pod: stagePod(image("new:1", ""), secrets("none", "s", "pull")), told: []string{
			"Warning FailedToRetrieveImagePullSecret pod: Unable to retrieve some image pull secrets (none, s)", "Normal Pulling", "pull new:1 [credential for https://index.docker.io/v1/]", "Normal Pulled"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStage(t)
			if test.change != nil {
				test.change(s)
			}
			_, err := s.resolver().Container(t.Context(), test.pod, &test.pod.Spec.Containers[0], inSandbox1)
			if got := failure(t, err); !strings.HasPrefix(got, test.err) || (got == "") != (test.err == "") {
				t.Errorf("got  %s\nwant %s", got, test.err)
			}
			got := strings.Split(s.told(), "\n")
			if !slices.EqualFunc(got, test.told, strings.HasPrefix) {
				t.Errorf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.told, "\n"))
			}
		})
	}
}

// TestImageBackOff follows a container whose image cannot be pulled at first.
func TestImageBackOff(t *testing.T) {
	s := newStage(t)
	r := s.resolver()
	p := stagePod(container(func(c *v1.Container) { c.Image = "late:1" }))
	try := func() (string, time.Duration) {
		_, err := r.Container(t.Context(), p, &p.Spec.Containers[0], inSandbox1)
		var start *pod.StartError
		if !errors.As(err, &start) {
			return fmt.Sprint(err), 0
		}
		return start.Error(), start.RetryAfter
	}
	check := func(wantError string, wantRetry time.Duration, wantTold string) {
		t.Helper()
		got, retry := try()
		if got != wantError || retry != wantRetry {
			t.Errorf("got %s, again after %v; want %s, %v", got, retry, wantError, wantRetry)
		}
		var reasons []string
		for _, line := range strings.Split(s.told(), "\n") {
			reasons = append(reasons, strings.Join(strings.Fields(line)[:2], " "))
		}
		if told := strings.Join(reasons, ", "); told != wantTold {
			t.Errorf("told %s, want %s", told, wantTold)
		}
	}
	const backOff = `ImagePullBackOff: Back-off pulling image "late:1": ErrImagePull: manifest unknown`
	failed := func() {
		t.Helper()
		check("ErrImagePull: manifest unknown", time.Second, "Normal Pulling, pull late:1, Warning Failed, Warning Failed")
	}
	step := func(d time.Duration) { s.clock.SetTime(s.clock.Now().Add(d)) }
	failed()
	step(time.Second)
	check(backOff, 9*time.Second, "Normal BackOff, Warning Failed")
	step(9 * time.Second)
	failed()
	check(backOff, 20*time.Second, "Normal BackOff, Warning Failed")
	step(20 * time.Second)
	s.registry["late:1"] = nil
	check("<nil>", 0, "Normal Pulling, pull late:1, Normal Pulled")
	check("<nil>", 0, "Normal Pulled")
	delete(s.present, "late:1")
	delete(s.registry, "late:1")
	failed()
	check(backOff, 10*time.Second, "Normal BackOff, Warning Failed")
	s.present["late:1"] = pod.Image{} // another client loaded it meanwhile
	check("<nil>", 0, "Normal Pulled")
}

func TestContainerConfigErrors(t *testing.T) {
	env := func(source *v1.EnvVarSource) func(*v1.Pod) {
		return container(func(c *v1.Container) { c.Env = []v1.EnvVar{{Name: "X", ValueFrom: source}} })
	}
	secret := func(name, key string) func(*v1.Pod) {
		return env(&v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: configMap(name), Key: key}})
	}
	breaks := func(verb string) func(*stage) {
		return func(s *stage) { s.broken[verb] = errors.New("it broke") }
	}
	for _, test := range []struct {
		name   string
		pod    *v1.Pod
		change func(*stage)
		want   string
	}{
		{name: "secret", pod: stagePod(secret("none", "k")), want: `secret "none" not found`},
		{name: "config map", pod: stagePod(env(&v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: configMap("none"), Key: "k"}})), want: `configmap "none" not found`},
		{name: "key", pod: stagePod(secret("s", "none")), want: "couldn't find key none in Secret shop/s"},
		{name: "forbidden", pod: stagePod(secret("s", "k")), change: breaks("object"), want: "it broke"},
		{name: "services", pod: stagePod(), change: breaks("services"), want: "services have not yet been read at least once, cannot construct envvars: it broke"},
		{name: "mounts", pod: stagePod(), change: breaks("mounts"), want: "it broke"},
		{name: "root", pod: stagePod(func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsNonRoot: ptr(true), RunAsUser: ptr[int64](0)}
		}),
			want: `container's runAsUser breaks non-root policy (pod: "web_shop(u1)", container: app)`},
		{name: "recursive", pod: stagePod(container(func(c *v1.Container) {
			c.VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data", ReadOnly: true, RecursiveReadOnly: ptr(v1.RecursiveReadOnlyEnabled)}}
		})), want: `volume "data" requested recursive read-only mode, but it is not supported by the runtime (it needs engine API 1.44 and kernel 5.12); IfPossible does without it`},
		{name: "disk full", pod: stagePod(), change: breaks("write"), want: "cannot write /etc/hosts of the pod: it broke"},
	} {
		s := newStage(t)
		if test.change != nil {
			test.change(s)
		}
		_, err := s.resolver().Container(t.Context(), test.pod, &test.pod.Spec.Containers[0], inSandbox1)
		if got, want := failure(t, err), "CreateContainerConfigError: "+test.want+" -> CreateContainerConfigError "+test.want; got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", test.name, got, want)
		}
		if told := s.told(); !strings.HasSuffix(told, "Warning Failed spec.containers{app}: Error: "+test.want) {
			t.Errorf("%s: told %s", test.name, told)
		}
	}
}

func TestStaticPodsDoNotWaitForServices(t *testing.T) {
	s := newStage(t)
	s.broken["services"] = errors.New("not yet")
	p := stagePod(func(p *v1.Pod) { p.Annotations = map[string]string{"kubernetes.io/config.source": "file"} })
	if _, err := s.resolver().Container(t.Context(), p, &p.Spec.Containers[0], inSandbox1); err != nil {
		t.Error(err)
	}
}

func TestSkippedNamesAreTold(t *testing.T) {
	s := newStage(t)
	p := stagePod(container(func(c *v1.Container) {
		c.EnvFrom = []v1.EnvFromSource{{Prefix: "x=", ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: configMap("cm")}}}
	}))
	if _, err := s.resolver().Container(t.Context(), p, &p.Spec.Containers[0], inSandbox1); err != nil {
		t.Error(err)
	}
	if told := s.told(); !strings.Contains(told, `Warning InvalidEnvironmentVariableNames spec.containers{app}: Keys ["x=a"] from envFrom were skipped`) {
		t.Error(told)
	}
}

// TestEndedContext: when the pod ends, an interrupted operation is not a failure of the pod and no Event reports it.
func TestEndedContext(t *testing.T) {
	gone := errors.New("the pod is going")
	for _, verb := range []string{"prepare", "lookup", "object", "mounts", "pull"} {
		s := newStage(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(gone)
		if verb != "pull" {
			s.broken[verb] = ctx.Err()
		}
		p := stagePod(container(func(c *v1.Container) {
			c.EnvFrom = []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: configMap("cm")}}}
			if verb == "pull" {
				c.Image = "new:1"
			}
		}))
		_, err := s.resolver().Container(ctx, p, &p.Spec.Containers[0], inSandbox1)
		if !errors.Is(err, gone) {
			t.Errorf("%s: got %v", verb, err)
		}
		if told := s.told(); strings.Contains(told, "Warning") {
			t.Errorf("%s: told %s", verb, told)
		}
	}
}

func TestReadVolumeFile(t *testing.T) {
	dir := t.TempDir()
	volume := filepath.Join(dir, "vol")
	for name, data := range map[string]string{"vol/sub/env": "A='1'", "outside": "SECRET='1'", "vol/big": strings.Repeat("x", maxConfigFile+1)} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	paths := map[string]string{"v": volume, "gone": filepath.Join(dir, "none")}
	type row struct{ volume, path, want, err string }
	tests := []row{
		{"v", "sub/env", "A='1'", ""},
		{"v", "sub/none", "", ""},
		{"v", "sub", "", "is not a regular file"},
		{"v", "../outside", "", "cannot open environment file"},
		{"v", "big", "", "more than 1048576 bytes"},
		{"x", "env", "", `cannot find the volume "x"`},
		{"gone", "env", "", `cannot open volume "gone"`},
	}
	// Windows lets only privileged users create links; without links there is nothing to refuse.
	if os.Symlink("../outside", filepath.Join(volume, "link")) == nil {
		if err := os.Symlink("sub/env", filepath.Join(volume, "inner")); err != nil {
			t.Fatal(err)
		}
		tests = append(tests, row{"v", "link", "", "cannot open environment file"}, row{"v", "inner", "A='1'", ""})
	}
	for _, test := range tests {
		text, found, err := readVolumeFile(paths, test.volume, test.path)
		if text != test.want || found != (test.want != "") || (err == nil) != (test.err == "") || (err != nil && !strings.Contains(err.Error(), test.err)) {
			t.Errorf("%s %s: got %.20q %v %v, want %q %s", test.volume, test.path, text, found, err, test.want, test.err)
		}
		if err != nil && strings.Contains(err.Error(), dir) {
			t.Errorf("the error tells a path of the host: %v", err)
		}
	}
}
