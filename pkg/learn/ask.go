package learn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// nameOfAPIServer is the name of the API server's Service in every cluster DNS, before the domain (Kubernetes DNS specification, 2.3.1;
// answers to queries for addresses, 2.3.3).
const nameOfAPIServer = "kubernetes.default.svc."

// Ask queries a cluster DNS for the name of the API server's Service, and returns the domain in it. (A kubelet may not read CoreDNS'
// ConfigMap.) It uses TCP, which no other host can spoof, and UDP only if there is no TCP.
func Ask(ctx context.Context, server, apiServer netip.Addr) (string, error) {
	return ask(ctx, netip.AddrPortFrom(server, dnsPort), apiServer)
}

func ask(ctx context.Context, server netip.AddrPort, apiServer netip.Addr) (string, error) {
	if !server.Addr().IsValid() || !apiServer.IsValid() {
		return "", errors.New("there is no cluster DNS, or no Service default/kubernetes, to ask about")
	}
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		at := net.JoinHostPort(server.Addr().String(), strconv.Itoa(int(server.Port())))
		conn, err := dialer.DialContext(ctx, "tcp", at)
		if err == nil || ctx.Err() != nil {
			return conn, err
		}
		return dialer.DialContext(ctx, "udp", at)
	}}
	names, err := resolver.LookupAddr(ctx, apiServer.String())
	for _, name := range names {
		domain, found := strings.CutPrefix(strings.TrimSuffix(strings.ToLower(name), "."), nameOfAPIServer)
		if found && len(validation.IsDNS1123Subdomain(domain)) == 0 {
			return domain, nil
		}
	}
	if err != nil {
		return "", fmt.Errorf("cannot ask the cluster DNS %s for the name of %s: %w", server.Addr(), apiServer, err)
	}
	return "", fmt.Errorf("the cluster DNS %s names %s %q, want %sDOMAIN", server.Addr(), apiServer, names, nameOfAPIServer)
}
