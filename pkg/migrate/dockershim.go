package migrate

import "github.com/winkube/winkube/pkg/daemon"

// ofDockershim are flags of upstream's kubelet before 1.24 that no later one has, nor this one.
var ofDockershim = []daemon.Foreign{
	{Flag: "keep-terminated-pod-volumes", Bool: true, Same: []string{"false"}, Want: "false", Why: "volumes of pods that have ended are unmounted"},
	{Flag: "register-schedulable", Bool: true, Same: []string{"true"}, Want: "true, or --register-with-taints", Why: "a new Node is schedulable unless it has a taint"},
	{Flag: "dynamic-config-dir", Want: "no directory, and --config or --config-dir instead", Why: "the API server has no configuration of kubelets"},
	{Flag: "cloud-config", Want: "no file, and --cloud-provider=external instead", Why: "a cloud controller manager has the cloud's settings"},
	{Flag: "azure-container-registry-config", Want: "no file, and --image-credential-provider-config instead", Why: "a plugin gets the credentials of cloud registries"},
	{Flag: "cni-cache-dir", Why: "records of networks are in the directory cni below --root-dir"},
	{Flag: "network-plugin-mtu", Same: []string{"0"}, Why: "the network's MTU follows from the node's interface"},
	{Flag: "experimental-dockershim-root-directory", Same: []string{daemon.Any}, Why: "Docker's labels are the only record of sandboxes"},
	{Flag: "experimental-check-node-capabilities-before-mount", Bool: true, Why: "a mount that fails says what is missing"},
	{Flag: "experimental-kernel-memcg-notification", Bool: true, Same: []string{daemon.Any}, Why: "the kernel always reports when memory runs out, where it can"},
	{Flag: "master-service-namespace", Same: []string{"default"}, Why: "pods get the variables of the namespace default's Services"},
	{Flag: "really-crash-for-testing", Bool: true, Why: "it is for tests"},
	{Flag: "docker-root", Same: []string{daemon.Any}, Why: "Docker reports where it keeps images"},
	{Flag: "docker-only", Bool: true, Why: "there is no cAdvisor"},
	{Flag: "docker-env-metadata-whitelist", Why: "there is no cAdvisor"},
	{Flag: "docker-tls", Bool: true, Why: "there is no cAdvisor"},
	{Flag: "docker-tls-ca", Why: "there is no cAdvisor"},
	{Flag: "docker-tls-cert", Why: "there is no cAdvisor"},
	{Flag: "docker-tls-key", Why: "there is no cAdvisor"},
}
