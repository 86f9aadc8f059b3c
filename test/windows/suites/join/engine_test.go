package join

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// engineRestarts kills the engine and starts it again. Its containers end, because Docker on Windows has no live-restore and ends at its start what
// still runs (moby libcontainerd/local/local_windows.go LoadContainer). So each container is restarted once, with a new endpoint, and its pod stays.
func (m *member) engineRestarts() {
	before, endpoints, pods := m.containers(), m.podEndpoints(), m.podUIDs()
	m.engine.Kill()
	m.startEngine()
	begin := time.Now()
	m.restarts++
	m.until(5*time.Minute, "pods after a restart of the engine", func(context.Context) error {
		if err := m.ready(time.Time{}); err != nil {
			return err
		}
		return m.podsReady(9, m.restarts)
	})
	m.did("engine restarted: containers restarted once, pods Ready after", seconds(time.Since(begin)))
	m.state("state after the engine's restart", relayed)
	m.restartedSoOften()
	if after := m.podUIDs(); !slices.Equal(pods, after) {
		m.Errorf("pods before: %v\nafter: %v", pods, after)
	}
	if after := m.containers(); len(after) != len(before) {
		m.Errorf("containers before: %v\nafter: %v", before, after)
	}
	after := m.podEndpoints()
	if len(after) != len(endpoints) || slices.ContainsFunc(after, func(id string) bool { return slices.Contains(endpoints, id) }) {
		m.Errorf("endpoints of pods before: %v\nafter: %v", endpoints, after)
	}
	m.inPod("my-secret-pod env")
	if got := m.inPod("my-empty-dir-pod cat /cache/file"); strings.TrimSpace(got) != "kept" {
		m.Errorf("emptyDir after a restart of the engine: %q", got)
	}
	m.services()
}

// podUIDs returns the UIDs of this test's pods.
func (m *member) podUIDs() (out []string) {
	m.Helper()
	pods, err := client.CoreV1().Pods(m.space).List(m.Context(), metav1.ListOptions{})
	if err != nil {
		m.Fatal(err)
	}
	for i := range pods.Items {
		out = append(out, string(pods.Items[i].UID))
	}
	slices.Sort(out)
	return out
}

// podEndpoints returns the IDs of the endpoints in HNS that containers have.
func (m *member) podEndpoints() (out []string) {
	m.Helper()
	var answer struct {
		Output []struct {
			ID               string
			SharedContainers []string
		}
	}
	_, text, _ := m.world.HNS.Call("HNSCall", []string{http.MethodGet, "/endpoints/", ""})
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		m.Fatal(err)
	}
	for _, one := range answer.Output {
		if slices.ContainsFunc(one.SharedContainers, func(holder string) bool { return holder != "host" }) {
			out = append(out, strings.ToLower(one.ID))
		}
	}
	return out
}
