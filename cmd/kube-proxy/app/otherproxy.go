package app

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/otherproxy"
)

// ownBalancers returns the network of HNS whose load balancers are this proxy's; "": it makes none.
func (s *settings) ownBalancers() string {
	if s.backEnd != byHNS {
		return ""
	}
	return s.hns.Network
}

// warnOfOther reports once, in the log and by an Event, what of another kube-proxy is on this host.
func warnOfOther(ctx context.Context, look func(ctx context.Context, ours string) otherproxy.Found, ours string, event func(kind, reason, message string)) {
	found := look(ctx, ours)
	if ctx.Err() != nil {
		return
	}
	for _, reason := range found.Unread {
		klog.V(2).InfoS("Cannot look for rules of another kube-proxy", "reason", reason)
	}
	if text := found.String(); text != "" {
		klog.InfoS("Found rules of another kube-proxy, which receive Service traffic first", "found", found.What(), "fix", found.Fix)
		event(v1.EventTypeWarning, "KubeProxyInTheWay", text)
	}
}
