package cni

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
)

// The CNI project's plugins for Windows, and the first build whose HNS supports remote subnets of overlay networks (hcsshim hcnglobals.go, HNS 9.2).
const (
	winBridge    = "win-bridge"
	winOverlay   = "win-overlay"
	overlayBuild = 17763
)

// linuxOnly are the CNI project's Linux-only plugins, and what to do on Windows.
var linuxOnly = map[string]string{
	"bridge": useInstead, "ptp": useInstead, "macvlan": useInstead, "ipvlan": useInstead, "host-device": useInstead, "vlan": useInstead, "tap": useInstead, "dummy": useInstead,
	"portmap": "remove it: the kubelet serves hostPorts itself", "bandwidth": leaveOut, "firewall": leaveOut, "tuning": leaveOut, "sbr": leaveOut, "vrf": leaveOut, "loopback": leaveOut,
}

const (
	useInstead = "use win-bridge or win-overlay"
	leaveOut   = "remove it"
)

// pluginConf is the part of a plugin's configuration that suits reads.
type pluginConf struct {
	Type       string `json:"type"`
	APIVersion int    `json:"apiVersion"`
	IPAM       struct {
		Type string `json:"type"`
	} `json:"ipam"`
}

// suits says why a network cannot be used on this host: its plugins are missing, or do not support this Windows or engine.
func (cfg Config) suits(list *libcni.NetworkConfigList, file string) error {
	for _, plugin := range list.Plugins {
		conf := pluginConf{}
		if err := json.Unmarshal(plugin.Bytes, &conf); err != nil {
			return fmt.Errorf("the network %q of %s: plugin %q: %w", list.Name, file, plugin.Network.Type, err)
		}
		why := cfg.lacks(conf)
		if why == "" && cfg.WindowsBuild > 0 {
			why = conf.unfit(cfg.WindowsBuild)
		}
		if why != "" {
			return fmt.Errorf("the network %q of %s %s", list.Name, file, why)
		}
	}
	return nil
}

// lacks returns the missing program. Plugins other than these two may handle ipam differently.
func (cfg Config) lacks(conf pluginConf) string {
	missing := func(name string) bool {
		_, err := invoke.FindInPath(name, cfg.BinDirs)
		return err != nil
	}
	where := fmt.Sprintf("which is not in %s (--cni-bin-dir)", strings.Join(cfg.BinDirs, ", "))
	instead, linux := linuxOnly[conf.Type]
	switch {
	case !missing(conf.Type):
	case linux && cfg.WindowsBuild > 0:
		return fmt.Sprintf("needs the plugin %q, which exists for Linux only; on Windows %s", conf.Type, instead)
	default:
		return fmt.Sprintf("needs the plugin %q, %s", conf.Type, where)
	}
	if slices.Contains([]string{winBridge, winOverlay}, conf.Type) && conf.IPAM.Type != "" && missing(conf.IPAM.Type) {
		return fmt.Sprintf("needs the IPAM plugin %q, %s", conf.IPAM.Type, where)
	}
	return ""
}

// unfit says what a configuration requires that is not available on that Windows with Docker. Version 2 of the plugins' interface adds the endpoint
// to an HCN namespace, which containerd creates for a pod and Docker does not (CNI plugins pkg/hns netconf_windows.go: 1 "applies to dockershim").
func (c pluginConf) unfit(build int) string {
	switch {
	case c.Type != winBridge && c.Type != winOverlay:
		return ""
	case c.Type == winOverlay && build < overlayBuild:
		return fmt.Sprintf("needs overlay networks, which Windows has from Server 2019 (build %d) on; this is build %d: use %s", overlayBuild, build, winBridge)
	case c.APIVersion > 1:
		return fmt.Sprintf(`has "apiVersion": %d for %s, which attaches pods of containerd; Docker needs "apiVersion": 1`, c.APIVersion, c.Type)
	}
	return ""
}
