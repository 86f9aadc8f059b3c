package doctor

import (
	"context"
	"fmt"
	"strings"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/hns"
	"github.com/winkube/winkube/pkg/netsh"
	"github.com/winkube/winkube/pkg/network"
	"github.com/winkube/winkube/pkg/network/hostnet"
	"github.com/winkube/winkube/pkg/vxlan"
)

// Examine reads the host's side of s, whose Config is set. It changes nothing; what could not be read is in s.Unread.
func Examine(ctx context.Context, s *Symptoms) error {
	var err error
	if s.Surroundings, err = hostnet.New().Look(); err != nil {
		s.Unread = append(s.Unread, fmt.Sprintf("adapters and routes: %v", err))
	}
	run := command.New()
	for _, name := range []string{"hns", "docker"} {
		if out, err := run.Run(ctx, nil, "sc.exe", "query", name); err != nil || !strings.Contains(string(out), "RUNNING") {
			s.Stopped = append(s.Stopped, name)
		}
	}
	out, err := run.Run(ctx, nil, "netsh", "interface", "ipv4", "show", "excludedportrange", "protocol=tcp")
	if err != nil {
		s.Unread = append(s.Unread, fmt.Sprintf("the excluded port ranges: %v", err))
	}
	s.Excluded = parseExcluded(string(out))
	rules, _ := netsh.New(run).Script(ctx, []string{netsh.Allowed(network.FirewallRule)}) // fails where there is none
	s.Admitted = strings.Contains(rules, network.FirewallRule)
	if s.Config.Mode == network.Overlay {
		s.Overlay, s.OverlayErr = hns.NewClient().Network(ctx, vxlan.DeviceName(true))
	}
	return nil
}
