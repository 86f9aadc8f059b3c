package network_test

import (
	"fmt"
	"net/netip"

	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/pod"
)

// The input is the administrator's configuration and facts about the node; the output is the host's planned state.
func ExamplePlan() {
	cfg := network.Config{
		Mode:          network.Overlay,
		Platform:      pod.Platform{OS: "linux"},
		NodeIPs:       []netip.Addr{netip.MustParseAddr("10.1.0.11")},
		NonMasquerade: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
	}
	facts := network.Facts{PodCIDRs: []string{"10.244.1.0/24"}, EngineVersion: "28.1.0", MTU: 1500}
	state, err := network.Plan(cfg, facts)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(state)
	// Output:
	// ready: true (NetworkReady: pods get addresses of 10.244.1.0/24)
	// pods join: winkube
	// engine network: winkube, driver bridge
	//   subnet 10.244.1.0/24, gateway 10.244.1.1
	//   option com.docker.network.bridge.enable_ip_masquerade=false
	//   option com.docker.network.bridge.gateway_mode_ipv4=nat-unprotected
	//   option com.docker.network.bridge.name=winkube0
	//   option com.docker.network.driver.mtu=1450
	//   label io.winkube.network=pods
	// forward: from and to 10.244.1.0/24
	// masquerade: from 10.244.1.0/24 except to 10.244.0.0/16, 224.0.0.0/4
	// address: 10.244.1.1/24 on winkube0
	// tunnel: winkube.4096, 10.244.1.0/32, mac 0e:2a:0a:f4:01:00, from 10.1.0.11, mtu 1450, VNI 4096, UDP port 4789
	// annotation: flannel.alpha.coreos.com/backend-data={"VNI":4096,"VtepMAC":"0e:2a:0a:f4:01:00"}
	// annotation: flannel.alpha.coreos.com/backend-type=vxlan
	// annotation: flannel.alpha.coreos.com/kube-subnet-manager=true
	// annotation: flannel.alpha.coreos.com/public-ip=10.1.0.11
}

// The same node with Windows Server 2022: HNS has the network, and the kubelet creates the pods' endpoints.
func ExamplePlan_windows() {
	cfg := network.Config{
		Mode:          network.Overlay,
		Platform:      pod.Platform{OS: "windows", Build: 20348},
		NodeIPs:       []netip.Addr{netip.MustParseAddr("10.1.0.11")},
		NonMasquerade: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
	}
	state, err := network.Plan(cfg, network.Facts{PodCIDRs: []string{"10.244.1.0/24"}, Adapter: "Ethernet"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Print(state)
	// Output:
	// ready: true (NetworkReady: pods get addresses of 10.244.1.0/24)
	// pods join: none
	// HNS network: winkube.4096, overlay on adapter "Ethernet", 10.244.1.0/24, gateway 10.244.1.1 is HNS', VNI 4096, UDP port 4789, from 10.1.0.11
	// source VIP of the service proxy: 10.244.1.2
	// masquerade: except to 10.244.0.0/16
}
