package kubelet

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/kubeclient"
	"github.com/winkube/winkube/pkg/learn"
	"github.com/winkube/winkube/pkg/report"
)

// newCluster learns what cfg does not set from Services, the proxy's report and the cluster DNS.
func newCluster(cfg Config, objects *kubeclient.Objects, reports report.FactsFile) (*learn.Cluster, error) {
	flags := learn.Flags{Services: cfg.Network.Services, Pods: cfg.Network.NonMasquerade, DNS: cfg.Resolver.ClusterDNS, Domain: cfg.Resolver.ClusterDomain}
	cluster := learn.New(flags, learn.Parts{Services: objects.AllServices, Reports: reports, Ask: learn.Ask, Clock: clock.RealClock{}})
	changed := func(before, now *v1.Service) {
		if now == nil {
			cluster.Service(before, true)
			return
		}
		cluster.Service(now, false)
	}
	return cluster, objects.OnService(changed, cluster.Kick)
}

// proxyReports is the file in which this host's proxy reports what it knows.
func proxyReports(cfg Config) report.FactsFile {
	reports, err := report.FactsOfHost(cfg.Platform.OS == "windows")
	if err != nil {
		klog.ErrorS(err, "Cannot find the file in which the proxy reports cluster settings; using Services only")
	}
	return reports
}
