package app

import (
	"crypto/tls"
	"fmt"
	"math"
	"net/netip"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// checkFile checks that a file named by a flag exists.
func checkFile(flag, path string) error {
	if path == "" {
		return nil
	}
	if _, err := os.Stat(path); err != nil {
		return fmt.Errorf("--%s=%s: %w", flag, path, err)
	}
	return nil
}

func split(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

func parsePrefixes(flag string, values []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, value := range values {
		prefix, err := parsePrefix(flag, value)
		if err != nil {
			return nil, err
		}
		out = append(out, prefix)
	}
	return out, nil
}

func parsePrefix(flag, value string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(value)
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("--%s=%s: want an address range such as 10.244.0.0/16", flag, value)
	}
	return prefix.Masked(), nil
}

func parseAddr(flag, value string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(value)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("--%s=%s: want an IP address such as 10.96.0.10", flag, value)
	}
	return addr, nil
}

func parseResources(flag string, values map[string]string) (v1.ResourceList, error) {
	list := v1.ResourceList{}
	for name, value := range values {
		switch v1.ResourceName(name) {
		case v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage, "pid":
		default:
			return nil, fmt.Errorf("--%s: %s: want cpu, memory, ephemeral-storage or pid", flag, name)
		}
		quantity, err := resource.ParseQuantity(value)
		if err != nil || quantity.Sign() < 0 {
			return nil, fmt.Errorf("--%s: %s=%s: want a quantity such as 200m or 500Mi", flag, name, value)
		}
		list[v1.ResourceName(name)] = quantity
	}
	return list, nil
}

// checkHeaders checks that all of --manifest-url-header are headers. Their values may be secret, so errors omit them.
func checkHeaders(headers map[string][]string) error {
	if _, bad := headers[""]; bad {
		return fmt.Errorf("--manifest-url-header: want a header such as \"authorization: Bearer x\"")
	}
	return nil
}

// parseTLS parses suites by their IANA names. It accepts those that Go calls insecure, as upstream does, for clients without better ones.
func parseTLS(names []string, least string) (suites []uint16, version uint16, err error) {
	switch least {
	case "VersionTLS12", "":
		version = tls.VersionTLS12
	case "VersionTLS13":
		version = tls.VersionTLS13
	default:
		return nil, 0, fmt.Errorf("--tls-min-version=%s: want VersionTLS12 or VersionTLS13", least)
	}
	for _, name := range names {
		found := false
		for _, suite := range slices.Concat(tls.CipherSuites(), tls.InsecureCipherSuites()) {
			if suite.Name == name {
				suites, found = append(suites, suite.ID), true
			}
		}
		if !found {
			return nil, 0, fmt.Errorf("--tls-cipher-suites: %s: want names such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", name)
		}
	}
	return suites, version, nil
}

// parseCurves checks the numbers of key exchanges: Go ignores unknown ones.
func parseCurves(numbers []int32) ([]tls.CurveID, error) {
	known := []tls.CurveID{tls.CurveP256, tls.CurveP384, tls.CurveP521, tls.X25519, tls.X25519MLKEM768, tls.SecP256r1MLKEM768, tls.SecP384r1MLKEM1024}
	var out []tls.CurveID
	for _, number := range numbers {
		curve := tls.CurveID(number)
		if number < 0 || number > math.MaxUint16 || !slices.Contains(known, curve) {
			return nil, fmt.Errorf("tlsCurvePreferences: %d: want some of %d", number, known)
		}
		out = append(out, curve)
	}
	return out, nil
}
