package join

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	summary "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// compute simulates the Host Compute Service: it has the engine's containers, with the figures of each one's first process. It answers
// immediately, like HCS: the Linux engine needs a second for the statistics of several containers.
func (m *member) compute(id string) (properties string, found bool) {
	details, err := m.host.Engine().Inspect(m.Context(), id)
	if err != nil || details.State.Pid == 0 {
		return "", false
	}
	time100ns, bytes, err := used(details.State.Pid)
	if err != nil {
		return "", false
	}
	type object = map[string]any
	data, err := json.Marshal(object{"Id": id, "SystemType": "Container", "Owner": "docker", "Statistics": object{
		"Processor": object{"TotalRuntime100ns": time100ns},
		"Memory":    object{"MemoryUsageCommitBytes": bytes, "MemoryUsagePrivateWorkingSetBytes": bytes},
		"Network":   []object{{"EndpointId": "e1", "BytesReceived": 1, "BytesSent": 2}},
	}})
	return string(data), err == nil
}

// used returns a process's CPU time and memory: fields 14, 15 (1/100 s) and 24 (pages) of proc_pid_stat(5). Field 2 is in parentheses.
func used(pid int) (time100ns, bytes uint64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	fields := strings.Fields(string(text[max(0, strings.LastIndex(string(text), ")")):]))
	if len(fields) < 23 {
		return 0, 0, fmt.Errorf("the figures of process %d are %q", pid, text)
	}
	var user, system, pages uint64
	if _, err := fmt.Sscan(fields[12]+" "+fields[13]+" "+fields[22], &user, &system, &pages); err != nil {
		return 0, 0, err
	}
	const per100th = 100_000
	return (user + system) * per100th, pages * uint64(os.Getpagesize()), nil
}

// metrics requires figures of the node and of each pod, and container figures from HCS.
func (m *member) metrics() {
	m.Helper()
	asked := len(m.world.Log.Calls("HcsGetComputeSystemProperties"))
	var got summary.Summary
	var took time.Duration
	m.until(time.Minute, "/stats/summary", func(ctx context.Context) error {
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
