package convert_test

import (
	"encoding/json"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/docker/convert"
	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// A pod's container, with the inputs resolved by package pod, and the request that creates it: name, configuration, labels and host configuration.
func ExampleContainer() {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "0a1b2c3d"}}
	p.Spec.Containers = []v1.Container{{
		Name: "app", Image: "registry.test/app:2", WorkingDir: "/srv",
		Resources: v1.ResourceRequirements{
			Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m"), v1.ResourceMemory: resource.MustParse("64Mi")},
		},
		SecurityContext: &v1.SecurityContext{RunAsUser: new(int64(1000)), ReadOnlyRootFilesystem: new(true)},
	}}
	step := pod.Step{Action: pod.StartContainer, Kind: podspec.App, Container: "app", Attempt: 2, Inputs: &pod.Inputs{
		Image:      pod.Image{ID: "sha256:1111", Ref: "docker-pullable://registry.test/app@sha256:2222"},
		Entrypoint: []string{"/bin/app"}, Args: []string{"--verbose"},
		Env:       []pod.Env{{Name: "PORT", Value: "80"}},
		Mounts:    []pod.Mount{{Name: "data", HostPath: "/var/lib/data", ContainerPath: "/data", ReadOnly: true}},
		SandboxID: "5a5a", OOMScoreAdj: 999,
	}}
	target := convert.Target{Platform: pod.Platform{OS: "linux", SharedNetwork: true}, Node: "node-1", API: "1.41", CPUs: 8}

	request, err := convert.Container(p, step, target)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(request.Name)
	labels := request.Config.Labels
	request.Config.Labels = nil
	printJSON(request.Config)
	printJSON(labels)
	printJSON(request.HostConfig)

	// Output:
	// k8s_app_web-0_shop_0a1b2c3d_2
	// {"Cmd":["--verbose"],"Entrypoint":["/bin/app"],"Env":["PORT=80"],"Image":"sha256:1111","User":"1000","WorkingDir":"/srv"}
	// {"annotation.io.kubernetes.container.restartCount":"2","annotation.io.kubernetes.pod.terminationGracePeriod":"30","io.kubernetes.container.name":"app","io.kubernetes.docker.type":"container","io.kubernetes.pod.name":"web-0","io.kubernetes.pod.namespace":"shop","io.kubernetes.pod.uid":"0a1b2c3d","io.kubernetes.sandbox.id":"5a5a","io.winkube.image":"registry.test/app:2","io.winkube.image-ref":"docker-pullable://registry.test/app@sha256:2222","io.winkube.kind":"app","io.winkube.node":"node-1","io.winkube.resources":"512/50000/100000/67108864"}
	// {"Binds":["/var/lib/data:/data:ro"],"CpuPeriod":100000,"CpuQuota":50000,"CpuShares":512,"IpcMode":"container:5a5a","LogConfig":{"Config":null,"Type":"json-file"},"Memory":67108864,"MemorySwap":67108864,"NetworkMode":"container:5a5a","OomScoreAdj":999,"ReadonlyRootfs":true,"RestartPolicy":{"MaximumRetryCount":0,"Name":"no"},"SecurityOpt":["seccomp=unconfined"]}
}

// printJSON prints the set fields of v.
func printJSON(v any) {
	text, _ := json.Marshal(v)
	var fields map[string]any
	_ = json.Unmarshal(text, &fields)
	for key, value := range fields {
		switch value {
		case nil, "", false, 0.0:
			delete(fields, key)
		}
	}
	delete(fields, "ConsoleSize")
	text, _ = json.Marshal(fields)
	fmt.Println(string(text))
}
