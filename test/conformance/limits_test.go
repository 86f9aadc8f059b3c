package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/winkube/winkube/test/lab"
)

// TestModeLimits: a test that a relay or the engine's hostPorts cannot pass is left out with the default mode, with a reason, and only there.
func TestModeLimits(t *testing.T) {
	const source = "[sig-network] Services should preserve source pod IP for traffic thru service cluster IP [LinuxOnly]"
	const port = "[sig-network] Networking should allow creating a Pod with an SCTP HostPort [LinuxOnly]"
	protocols, err := os.ReadFile("/proc/net/protocols")
	if err != nil {
		t.Fatal(err)
	}
	sctp := strings.Contains(string(protocols), "\nSCTP ")
	for _, c := range []struct {
		name, proxy, lacks, interfaces string
		out                            bool
	}{
		{source, "", "", "", true}, {source, "connect", "", "", false}, {source, "auto", "", "", false}, {source, "auto", "bpffs", "", true},
		{port, "", "", "engine", !sctp}, {port, "connect", "", "engine", !sctp}, {port, "", "", "", false},
	} {
		o := options{wide: true, sigs: []string{"sig-network"}, proxy: c.proxy, lacks: c.lacks, interfaces: c.interfaces}
		limits, err := limitsHere(o)
		if err != nil {
			t.Fatal(err)
		}
		p := pick([]string{c.name}, o, limits)
		if len(p.Cannot) == 1 != c.out || len(p.Tests) == 1 == c.out {
			t.Errorf("PROXY_MODE=%s PROXY_LACKS=%s POD_INTERFACES=%s: runs %q, leaves out %q", c.proxy, c.lacks, c.interfaces, p.Tests, p.Cannot)
		}
	}
}

// TestVMRuns: on the virtual machine run tests that need what a real host has, and a part of sig-node; nothing that restarts nodes or takes long.
func TestVMRuns(t *testing.T) {
	o := options{vm: true, sigs: []string{"sig-node", "sig-storage"}}
	limits, err := limitsHere(o)
	if err != nil {
		t.Fatal(err)
	}
	runs := []string{
		"[sig-node] PrivilegedPod [NodeConformance] should enable privileged commands [LinuxOnly]",
		"[sig-node] Mount propagation should propagate mounts within defined scopes",
		"[sig-node] Pods should support remote command execution over websockets [NodeConformance] [Conformance]",
		"[sig-storage] In-tree Volumes [Driver: local] [LocalVolumeType: dir] [Testpattern: Pre-provisioned PV (default fs)] subPath should support existing directory",
	}
	p := pick(append([]string{
		"[sig-storage] In-tree Volumes [Driver: local] [LocalVolumeType: dir] [Testpattern: Pre-provisioned PV (default fs)] subPath should support restarting containers [Slow]",
		"[sig-storage] PersistentVolumes-local [Volume type: dir] Two pods mounting a local volume [Flaky]",
		"[sig-node] kubelet [Feature:NodeLogQuery] should return the Microsoft-Windows-Security-SPP logs",
		"[sig-apps] Job should allow to use a pod failure policy to ignore failure matching on exit code",
		"[sig-storage] EmptyDir volumes should support (non-root,0777,default) [LinuxOnly] [NodeConformance] [Conformance]",
	}, runs...), o, limits)
	if !slices.Equal(p.Tests, runs) || len(p.Cannot) > 0 {
		t.Errorf("runs %q, leaves out %q", p.Tests, p.Cannot)
	}
}

// TestPrivilegedRuns: with RUNTIME=runc-privileged the first node runs tests that need privileged containers, and no others of the machine's limits.
func TestPrivilegedRuns(t *testing.T) {
	runs := []string{
		"[sig-node] Security Context When creating a pod with privileged should run the container as privileged when true [LinuxOnly]",
		"[sig-storage] CSI Mock workload info CSI PodInfoOnMount Update should not be passed when update from true to false",
		"[sig-storage] In-tree Volumes [Driver: hostPath] [Testpattern: Inline-volume (default fs)] volumes should store data",
	}
	others := []string{
		"[sig-storage] CSI Mock selinux on mount SELinuxMount should pass SELinux mount option for RWOP volume",
		"[sig-storage] In-tree Volumes [Driver: local] [LocalVolumeType: dir] [Testpattern: Pre-provisioned PV (default fs)] subPath should support existing directory",
		"[sig-storage] In-tree Volumes [Driver: nfs] [Testpattern: Inline-volume (default fs)] volumes should store data",
	}
	for _, test := range []struct {
		runtime string
		want    []string
	}{{lab.RuncPrivileged, runs}, {"", nil}, {"crun", nil}} {
		o := options{wide: true, sigs: []string{"sig-node", "sig-storage"}, runtime: test.runtime}
		limits, err := limitsHere(o)
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(limits, func(l limit) bool { return strings.Contains(l.reason, "privileged") }) == (test.runtime == lab.RuncPrivileged) {
			if test.runtime != lab.RuncPrivileged {
				t.Skip("this machine can grant all capabilities")
			}
			t.Errorf("RUNTIME=%s has limits of privileged containers", test.runtime)
		}
		if p := pick(append(slices.Clone(others), runs...), o, limits); !slices.Equal(p.Tests, test.want) {
			t.Errorf("RUNTIME=%s runs %q, want %q", test.runtime, p.Tests, test.want)
		}
	}
}
