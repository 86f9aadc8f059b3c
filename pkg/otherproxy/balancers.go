package otherproxy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/winkube/winkube/pkg/hns"
)

// fixWindows: upstream's program has no --cleanup on Windows (cmd/kube-proxy/app/server_windows.go, platformCleanup).
// The proxy makes its own load balancers again if they are removed too.
const fixWindows = "stop the other kube-proxy if it still runs, then run hnsdiag delete loadbalancers ID for each ID of hnsdiag list loadbalancers" +
	" (Server 2016: Get-HnsPolicyList | Remove-HnsPolicyList), or restart the host"

// shown is how many fronts of load balancers a trace names.
const shown = 3

// foundIn judges the load balancers of HNS. Those on the network ours belong to our proxy, which adopts them (package
// proxy/hnslb); "": it has none. One whose endpoints are gone counts as on every network.
func foundIn(list []hns.Listing, ours string) (f Found) {
	var fronts []string
	n := 0
	for _, l := range list {
		if ours != "" && !slices.ContainsFunc(l.Networks, func(name string) bool { return name != ours }) {
			continue
		}
		n++
		fronts = append(fronts, l.Fronts...)
	}
	if n == 0 {
		return f
	}
	slices.Sort(fronts)
	if more := len(fronts) - shown; more > 0 {
		fronts = append(fronts[:shown], fmt.Sprintf("%d more", more))
	}
	trace := count(n, "load balancer", "load balancers") + " of HNS"
	if len(fronts) > 0 {
		trace += " at " + strings.Join(fronts, ", ")
	}
	return Found{Traces: []string{trace}, Fix: fixWindows}
}
