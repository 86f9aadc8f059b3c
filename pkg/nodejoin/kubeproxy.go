package nodejoin

import (
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/clientset"
	"github.com/winkube/winkube/pkg/kubeclient"
	netdoctor "github.com/winkube/winkube/pkg/network/doctor"
)

// ProxyLabel marks Nodes that run our proxy, so that build/kubernetes/kube-proxy-patch.yaml can keep kubeadm's kube-proxy off them.
const ProxyLabel = "winkube.io/proxy"

// OtherProxy says whether pods of kubeadm's DaemonSet kube-proxy run on the Node of this kubeconfig. ok is false if the file is not a node's, or the
// API server does not answer.
func OtherProxy(ctx context.Context, kubeconfig string) (finding netdoctor.Finding, ok bool) {
	name, err := commonName(kubeconfig)
	node, found := strings.CutPrefix(name, nodeUser)
	if err != nil || !found {
		return finding, false
	}
	config, err := kubeclient.Config(kubeclient.Options{Kubeconfig: kubeconfig})
	if err != nil {
		return finding, false
	}
	client, err := clientset.NewForConfig(config)
	if err != nil {
		return finding, false
	}
	pods, err := client.Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return finding, false
	}
	return diagnoseProxies(node, pods.Items), true
}

// diagnoseProxies looks for pods of a DaemonSet kube-proxy.
func diagnoseProxies(node string, pods []v1.Pod) netdoctor.Finding {
	for _, p := range pods {
		owner := metav1.GetControllerOf(&p)
		if p.Spec.NodeName == node && p.DeletionTimestamp == nil && owner != nil && owner.Kind == "DaemonSet" && strings.HasPrefix(owner.Name, "kube-proxy") {
			return netdoctor.Finding{Fault: true, What: fmt.Sprintf("pod %s/%s of DaemonSet %s also serves Services on this node: both answer at the same addresses", p.Namespace, p.Name, owner.Name),
				Fix: fmt.Sprintf("kubectl -n %s patch daemonset %s --patch-file build/kubernetes/kube-proxy-patch.yaml; it keeps that DaemonSet from Nodes with the label %s", p.Namespace, owner.Name, ProxyLabel)}
		}
	}
	return netdoctor.Finding{What: "no DaemonSet kube-proxy runs a pod on this node"}
}
