package join

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/docker/docker/api/types/container"
	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// compute is the Host Compute Service: it has the containers of the engine, and their figures.
func (m *member) compute(id string) (properties string, found bool) {
	text, err := m.ask(m.Context(), http.MethodGet, "/containers/"+id+"/stats?stream=false&one-shot=true", "")
	var s container.StatsResponse
	if err != nil || json.Unmarshal([]byte(text), &s) != nil {
		return "", false
	}
	type object = map[string]any
	data, err := json.Marshal(object{"Id": id, "SystemType": "Container", "Owner": "docker", "Statistics": object{
		"Processor": object{"TotalRuntime100ns": s.CPUStats.CPUUsage.TotalUsage},
		"Memory":    object{"MemoryUsageCommitBytes": s.MemoryStats.Commit, "MemoryUsagePrivateWorkingSetBytes": s.MemoryStats.PrivateWorkingSet},
		"Network":   []object{{"EndpointId": "e1", "BytesReceived": 1, "BytesSent": 2}},
	}})
	return string(data), err == nil
}

// metrics wants figures of the node and of each pod, and those of containers from HCS.
func (m *member) metrics() {
	m.Helper()
	asked := len(m.world.Log.Calls("HcsGetComputeSystemProperties"))
	var got summary.Summary
	var took time.Duration
	m.until(30*time.Second, "/stats/summary", func(ctx context.Context) error {
		begin := time.Now()
		text, err := client.CoreV1().RESTClient().Get().Resource("nodes").Name(m.host.Name).SubResource("proxy").Suffix("stats/summary").DoRaw(ctx)
		took = time.Since(begin)
		if err != nil {
			return err
		}
		got = summary.Summary{}
		if err := json.Unmarshal(text, &got); err != nil {
			return err
		}
		switch n := got.Node; {
		case n.CPU == nil || n.CPU.UsageNanoCores == nil, n.Memory == nil || *n.Memory.WorkingSetBytes == 0, n.Fs == nil || *n.Fs.CapacityBytes == 0:
			return fmt.Errorf("of the node it has %s", text)
		case n.Network == nil || n.Network.RxBytes == nil || *n.Network.RxBytes == 0:
			return fmt.Errorf("of the node's network it has %+v", n.Network)
		}
		return nil
	})
	for _, p := range got.Pods {
		if p.Memory == nil || *p.Memory.WorkingSetBytes == 0 || p.Network == nil || *p.Network.TxBytes != 2 {
			m.Errorf("pod %s has memory %+v, network %+v", p.PodRef.Name, p.Memory, p.Network)
		}
	}
	if asked == len(m.world.Log.Calls("HcsGetComputeSystemProperties")) || len(got.Pods) < 9 {
		m.Errorf("HCS was not asked, or there are %d pods", len(got.Pods))
	}
	m.did("/stats/summary: node, pods by HCS", fmt.Sprintf("%d pods, %s", len(got.Pods), seconds(took)))
}
