package app

import (
	"cmp"
	"runtime"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	config "k8s.io/kubelet/config/v1beta1"

	"github.com/winkube/winkube/pkg/credential"
	"github.com/winkube/winkube/pkg/node"
)

// setDefaults sets the defaults of unset fields that have flags. As upstream does, it treats a number, text or list as set if it is not zero, and a
// pointer if it is not nil: kubeadm writes many zeros that mean unset.
func setDefaults(c *config.KubeletConfiguration) {
	setTimeDefaults(c)
	setServerDefaults(c)
	c.RegisterNode = orDefault(c.RegisterNode, true)
	c.MaxPods = cmp.Or(c.MaxPods, 110)
	c.NodeStatusMaxImages = orDefault(c.NodeStatusMaxImages, 50)
	c.ContentType, c.MaxOpenFiles = cmp.Or(c.ContentType, "application/vnd.kubernetes.protobuf"), cmp.Or(c.MaxOpenFiles, 1_000_000)
	c.KubeAPIQPS, c.KubeAPIBurst = orDefault(c.KubeAPIQPS, 50), cmp.Or(c.KubeAPIBurst, 100)
	c.EventRecordQPS, c.EventBurst = orDefault(c.EventRecordQPS, 50), cmp.Or(c.EventBurst, 100)
	c.ContainerLogMaxSize, c.ContainerLogMaxFiles = cmp.Or(c.ContainerLogMaxSize, "10Mi"), orDefault(c.ContainerLogMaxFiles, 5)
	c.PodLogsDir = cmp.Or(c.PodLogsDir, defaultPodLogsDir())
	c.VolumePluginDir = cmp.Or(c.VolumePluginDir, defaultVolumePluginDir())
	c.ResolverConfig = orDefault(c.ResolverConfig, defaultResolvConf())
	c.SerializeImagePulls, c.MaxParallelImagePulls = orDefault(c.SerializeImagePulls, false), orDefault(c.MaxParallelImagePulls, 0)
	c.RegistryPullQPS, c.RegistryBurst = orDefault(c.RegistryPullQPS, 5), cmp.Or(c.RegistryBurst, 10)
	c.ImagePullCredentialsVerificationPolicy = cmp.Or(c.ImagePullCredentialsVerificationPolicy, config.ImagePullCredentialsVerificationPolicy(credential.NeverVerifyPreloaded))
	c.CgroupsPerQOS, c.SeccompDefault = orDefault(c.CgroupsPerQOS, true), orDefault(c.SeccompDefault, false)
	c.PodPidsLimit, c.OOMScoreAdj = orDefault(c.PodPidsLimit, -1), orDefault(c.OOMScoreAdj, -999)
	if len(c.EnforceNodeAllocatable) == 0 {
		c.EnforceNodeAllocatable = []string{"pods"}
	}
	if len(c.EvictionHard) == 0 {
		c.EvictionHard = node.DefaultEvictionHard(runtime.GOOS)
	}
	c.ImageGCHighThresholdPercent, c.ImageGCLowThresholdPercent = orDefault(c.ImageGCHighThresholdPercent, 85), orDefault(c.ImageGCLowThresholdPercent, 80)
}

func setTimeDefaults(c *config.KubeletConfiguration) {
	for field, value := range map[*metav1.Duration]time.Duration{
		&c.SyncFrequency: time.Minute, &c.FileCheckFrequency: 20 * time.Second, &c.HTTPCheckFrequency: 20 * time.Second,
		&c.NodeStatusUpdateFrequency: 10 * time.Second, &c.NodeStatusReportFrequency: 5 * time.Minute,
		&c.RuntimeRequestTimeout: 2 * time.Minute, &c.StreamingConnectionIdleTimeout: 4 * time.Hour,
		&c.EvictionPressureTransitionPeriod: 5 * time.Minute, &c.ImageMinimumGCAge: 2 * time.Minute,
		&c.Authentication.Webhook.CacheTTL: 2 * time.Minute, &c.Authorization.Webhook.CacheAuthorizedTTL: 5 * time.Minute,
		&c.Authorization.Webhook.CacheUnauthorizedTTL: 30 * time.Second,
	} {
		field.Duration = cmp.Or(field.Duration, value)
	}
}

func setServerDefaults(c *config.KubeletConfiguration) {
	c.Address, c.Port = cmp.Or(c.Address, "0.0.0.0"), cmp.Or(c.Port, 10250)
	c.HealthzBindAddress, c.HealthzPort = cmp.Or(c.HealthzBindAddress, "127.0.0.1"), orDefault(c.HealthzPort, 10248)
	c.TLSMinVersion = cmp.Or(c.TLSMinVersion, "VersionTLS12")
	c.Authentication.Anonymous.Enabled = orDefault(c.Authentication.Anonymous.Enabled, false)
	c.Authentication.Webhook.Enabled = orDefault(c.Authentication.Webhook.Enabled, true)
	c.Authorization.Mode = cmp.Or(c.Authorization.Mode, config.KubeletAuthorizationModeWebhook)
	c.EnableServer = orDefault(c.EnableServer, true)
	c.EnableDebuggingHandlers, c.EnableProfilingHandler = orDefault(c.EnableDebuggingHandlers, true), orDefault(c.EnableProfilingHandler, true)
}

// orDefault is p, or a pointer to value if p is nil.
func orDefault[T any](p *T, value T) *T {
	if p != nil {
		return p
	}
	return &value
}
