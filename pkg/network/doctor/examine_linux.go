package doctor

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/iptables"
	"github.com/winkube/winkube/pkg/network/firewalld"
	"github.com/winkube/winkube/pkg/network/hostnet"
)

// Examine reads the host's part of s, whose Config must be set. It changes nothing; the error lists what could not be read.
func Examine(ctx context.Context, s *Symptoms) error {
	var err error
	s.Surroundings, err = hostnet.New().Look()
	s.Forwarding = map[string]bool{}
	for family, name := range map[string]string{"ipv4": "/proc/sys/net/ipv4/ip_forward", "ipv6": "/proc/sys/net/ipv6/conf/all/forwarding"} {
		b, err := os.ReadFile(name)
		s.Forwarding[family] = err == nil && strings.TrimSpace(string(b)) == "1"
	}
	s.Saved, s.FilterErr = iptables.Save(ctx, command.New())
	var unread error
	if s.Firewalld, unread = firewalld.Look(ctx, s.Config.PodBridge(), s.Config.NonMasquerade); unread != nil {
		s.Unread = append(s.Unread, fmt.Sprintf("firewalld's zones: %v", unread))
	}
	return err
}
