package hostnet

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/wake"
)

// In a separate network namespace the kernel sends hints about changes by others, but not about containers' interfaces.
func TestWatch(t *testing.T) {
	namespace(t)
	ctx, cancel := context.WithCancel(t.Context())
	hints := wake.New()
	wait, err := New().Watch(ctx, hints)
	if err != nil {
		t.Fatal(err)
	}
	defer wait()
	defer cancel()
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "pod"}, PeerName: "peer"}
	for _, change := range []func(netlink.Link) error{netlink.LinkAdd, netlink.LinkSetUp, netlink.LinkDel} {
		if err := change(veth); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-hints:
		t.Error("a container's interface is a reason to look")
	case <-time.After(50 * time.Millisecond):
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge"}}
	if err := netlink.LinkAdd(bridge); err != nil {
		t.Fatal(err)
	}
	select {
	case <-hints:
	case <-time.After(5 * time.Second):
		t.Fatal("no hint of a new bridge")
	}
	run := command.New()
	if _, err := run.Run(ctx, []byte("*filter\n:OTHERS - [0:0]\nCOMMIT\n"), "iptables-restore"); err != nil {
		if errors.Is(err, command.ErrNotFound) {
			t.Skip("this machine has no iptables")
		}
		t.Fatal(err)
	}
	select {
	case <-hints:
	case <-time.After(5 * time.Second):
		if v, err := run.Run(ctx, nil, "iptables", "-V"); err != nil || strings.Contains(string(v), "nf_tables") {
			t.Errorf("no hint of new rules (%s, %v)", v, err)
		}
	}
}
