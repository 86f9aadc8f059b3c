package node

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeletapis "k8s.io/kubelet/pkg/apis"
)

// Config is the user's settings for the Node. Zero values in the last group mean upstream's defaults.
type Config struct {
	Name         string            // of the Node
	Hostname     string            // for the address of type Hostname and the label kubernetes.io/hostname; "": Name
	Labels       map[string]string // --node-labels; New refuses those that NodeRestriction forbids
	Taints       []v1.Taint        // --register-with-taints; only for a new Node, because NodeRestriction refuses later changes
	ProviderID   string            // --provider-id; only for a new Node
	Unregistered bool              // do not create the Node: --register-node=false

	// ExternalCloud is --cloud-provider=external: a new Node is tainted until the cloud's controller manager has initialized it, and that
	// manager sets its addresses (k8s.io/cloud-provider).
	ExternalCloud bool
	// NodeIP is --node-ip, comma-separated addresses as the cloud expects them; "": not set, and a cloud's Node waits for its addresses.
	NodeIP string

	PodsPerCore    int // 0: no limit per core
	SystemReserved v1.ResourceList
	KubeReserved   v1.ResourceList
	EvictionHard   map[string]string // signal -> quantity or percentage; nil: upstream's defaults

	MaxPods         int           // 0: 110
	Port            int32         // of the kubelet's HTTPS API; 0: 10250
	MaxImages       *int          // nil: 50; negative: all
	UpdateFrequency time.Duration // interval of comparisons; 0: 10 s
	ReportFrequency time.Duration // interval of heartbeats in the status; 0: 5 min
	LeaseDuration   time.Duration // 0: 40 s; the Lease is renewed four times per duration
}

// complete sets defaults and validates.
func (c Config) complete() (Config, error) {
	if errs := validation.IsDNS1123Subdomain(c.Name); len(errs) > 0 {
		return c, fmt.Errorf("node name %q: %s", c.Name, strings.Join(errs, "; "))
	}
	if c.Hostname == "" {
		c.Hostname = c.Name
	}
	if errs := validation.IsValidLabelValue(c.Hostname); len(errs) > 0 {
		return c, fmt.Errorf("hostname %q: it cannot be the value of label %s: %s", c.Hostname, v1.LabelHostname, strings.Join(errs, "; "))
	}
	if err := checkLabels(c.Labels); err != nil {
		return c, err
	}
	for signal, value := range c.EvictionHard {
		if _, err := threshold(value, 0); err != nil {
			return c, fmt.Errorf("hard eviction threshold %s: %q: %w", signal, value, err)
		}
	}
	c.MaxPods = or(c.MaxPods, 110)
	c.Port = or(c.Port, 10250)
	c.MaxImages = or(c.MaxImages, new(50))
	c.UpdateFrequency = or(c.UpdateFrequency, 10*time.Second)
	c.ReportFrequency = or(c.ReportFrequency, 5*time.Minute)
	c.LeaseDuration = or(c.LeaseDuration, 40*time.Second)
	return c, nil
}

func or[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// checkLabels refuses invalid labels and those that the admission plugin NodeRestriction forbids nodes to set: a node could use them to
// attract pods.
func checkLabels(labels map[string]string) error {
	var problems []string
	for name, value := range labels {
		for _, e := range validation.IsQualifiedName(name) {
			problems = append(problems, fmt.Sprintf("%q: %s", name, e))
		}
		for _, e := range validation.IsValidLabelValue(value) {
			problems = append(problems, fmt.Sprintf("%q: value %q: %s", name, value, e))
		}
		domain, _, prefixed := strings.Cut(name, "/")
		restricted := domain == v1.LabelNamespaceNodeRestriction || strings.HasSuffix(domain, "."+v1.LabelNamespaceNodeRestriction)
		kubernetes := slices.ContainsFunc([]string{"kubernetes.io", "k8s.io"}, func(d string) bool {
			return domain == d || strings.HasSuffix(domain, "."+d)
		})
		if prefixed && (restricted || kubernetes && !kubeletapis.IsKubeletLabel(name)) {
			problems = append(problems, fmt.Sprintf("%q: the API server does not let a node set this label; in the domains kubernetes.io and k8s.io a node may set names of %s, and %s",
				name, strings.Join(kubeletapis.KubeletLabelNamespaces(), " and "), strings.Join(kubeletapis.KubeletLabels(), ", ")))
		}
	}
	if len(problems) == 0 {
		return nil
	}
	slices.Sort(problems)
	return fmt.Errorf("node labels: %s", strings.Join(problems, "; "))
}
