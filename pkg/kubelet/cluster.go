package kubelet

import (
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
	return cluster, objects.OnService(cluster.Service, cluster.Kick)
}

// proxyReports is the file in which this host's proxy reports what it knows.
func proxyReports(cfg Config) report.FactsFile {
	reports, err := report.FactsOfHost(cfg.Platform.OS == "windows")
	if err != nil {
		klog.ErrorS(err, "Cannot find the file in which the proxy reports cluster settings; using Services only")
	}
	return reports
}
