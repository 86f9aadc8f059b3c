package join

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/test/lab"
)

// hnsRestarts lets HNS crash and come back with what it keeps. Where it loses endpoints, pods are made anew, once. (The containers beneath keep
// their networks, so that only what HNS says tells the kubelet.)
func (m *member) hnsRestarts() {
	before := m.containers()
	m.world.HNS.Crash()
	m.services()
	begin := time.Now()
	m.world.HNS.Start()
	kept := m.world.HNS.Restores()
	m.until(90*time.Second, "pods after a crash of HNS", func(context.Context) error {
		if err := m.ready(time.Time{}); err != nil {
			return err
		}
		if err := m.podsReady(9, 0); err != nil {
			return err
		}
		if err := m.sameState(relayed); err != nil { // before the engine is asked, which costs more
			return err
		}
		if after := m.containers(); slices.Equal(before, after) != kept {
			return fmt.Errorf("containers are the same: %t, endpoints were kept: %t", !kept, kept)
		}
		return nil
	})
	m.did("crash of HNS: pods connected again after", seconds(time.Since(begin)))
	if !kept {
		m.restarts++
	}
	m.restartedSoOften()
	m.services()
	m.inPod("my-secret-pod env")
	m.state("state after a crash of HNS", relayed)
}

// restartedSoOften wants each container to have been made anew as often as there was reason, not once more.
func (m *member) restartedSoOften() {
	m.Helper()
	pods, err := client.CoreV1().Pods(m.space).List(m.Context(), metav1.ListOptions{})
	if err != nil {
		m.Fatal(err)
	}
	for i := range pods.Items {
		for _, status := range pods.Items[i].Status.ContainerStatuses {
			if status.RestartCount != m.restarts {
				m.Errorf("container %s of pod %s was restarted %d times, want %d", status.Name, pods.Items[i].Name, status.RestartCount, m.restarts)
			}
		}
	}
}

// kinds goes through the other networks of this Windows, without pods: their first start, kill -9, a crash of HNS and a reboot. Server 2016 has one.
func (m *member) kinds() {
	if !m.world.HNS.V2() {
		return
	}
	for _, kind := range []network.WindowsNetwork{network.Transparent, network.NAT} {
		start := func() {
			begin := time.Now()
			m.kubelet = m.start("kubelet.exe", m.agent("kubelet.exe", append(m.kubeletFlags(), "--windows-network="+string(kind))))
			// What was right before may still be: a program that is stopped before it listens for Ctrl-C does not hear it.
			m.until(time.Minute, "Node Ready with network "+string(kind), func(context.Context) error { return m.ready(begin) })
		}
		m.world.Reboot() // of what was switched on for the network before
		start()
		m.state("network "+string(kind)+", first start", string(kind))
		m.kubelet.kill()
		start()
		m.world.HNS.Restart()
		m.state("network "+string(kind)+", kill -9, crash of HNS", string(kind))
		m.kubelet.stop() // as an orderly shutdown does; reboots is a loss of power
		m.engine.kill()
		m.world.Reboot()
		if err := m.Reboot(m.Context()); err != nil {
			m.Fatal(err)
		}
		m.boot()
		start()
		m.state("network "+string(kind)+", reboot", string(kind))
		m.kubelet.stop()
		m.deleteNetwork()
		m.removeRule()
	}
	m.nothingLeft()
}

// doctor runs `kubelet.exe network doctor` on the healthy node. Wine's service manager has neither hns nor docker, which it says.
func (m *member) doctor() {
	args := []string{"network", "doctor", "--node-ip=" + m.host.Addr.String(), "--cluster-cidr=" + lab.PodCIDR, "--service-cidr=" + lab.ServiceCIDR}
	out, err := m.agent("kubelet.exe", args).Output()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		m.Fatal(err)
	}
	names, err := m.names()
	if err != nil {
		m.Fatal(err)
	}
	got := otherNodes.ReplaceAllString(strings.ReplaceAll(string(out), "\r\n", "\n"), "N routes")
	got = address.ReplaceAllStringFunc(got, func(found string) string { return cmp.Or(names[found], found) })
	path := fmt.Sprintf("testdata/%d.doctor", m.Build)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			m.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || got != string(want) {
		m.Errorf("%s: %v; the doctor says\n%s\nwanted is\n%s", path, err, got, want)
	}
	m.did("kubelet.exe network doctor", "ok")
}

// otherNodes is how the doctor counts routes: to the other Windows node there may be one.
var otherNodes = regexp.MustCompile(`\b\d+ routes`)

func (m *member) deleteNetwork() {
	m.Helper()
	if _, err := m.ask(m.Context(), http.MethodDelete, "/networks/"+podNetwork, ""); err != nil {
		m.Error(err)
	}
}

// nothingLeft looks for what is left on the host, and for calls that the simulators do not know.
func (m *member) nothingLeft() {
	m.Helper()
	if left, err := m.dump(); err != nil || m.without(left) != "" {
		m.Errorf("left in HNS, IP Helper and netsh beside the network nat: %v\n%s", err, m.without(left))
	}
	if unknown := m.world.Log.Unknown(); len(unknown) > 0 {
		m.Errorf("the simulators were asked for what they do not know: %v", unknown)
	}
}
