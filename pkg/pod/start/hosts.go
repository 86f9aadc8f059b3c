package start

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/winkube/winkube/pkg/podspec"
)

const (
	maxHostname = 63 // bytes of one DNS label
	maxNodename = 64 // bytes of the kernel's utsname.nodename
)

// podHostname returns the pod's host name and, with spec.subdomain, its domain. It truncates long names.
func podHostname(pod *v1.Pod, clusterDomain string) (name, domain string, err error) {
	if o := pod.Spec.HostnameOverride; o != nil {
		if errs := validation.IsDNS1123Subdomain(*o); len(errs) > 0 {
			return "", "", fmt.Errorf("pod HostnameOverride %q is not a valid DNS subdomain: %s", *o, strings.Join(errs, "; "))
		}
		return cutHostname(*o), "", nil
	}
	name = pod.Name
	if h := pod.Spec.Hostname; h != "" {
		if errs := validation.IsDNS1123Label(h); len(errs) > 0 {
			return "", "", fmt.Errorf("pod Hostname %q is not a valid DNS label: %s", h, strings.Join(errs, "; "))
		}
		name = h
	}
	if s := pod.Spec.Subdomain; s != "" {
		if errs := validation.IsDNS1123Label(s); len(errs) > 0 {
			return "", "", fmt.Errorf("pod Subdomain %q is not a valid DNS label: %s", s, strings.Join(errs, "; "))
		}
		domain = s + "." + pod.Namespace + ".svc." + clusterDomain
	}
	return cutHostname(name), domain, nil
}

func cutHostname(name string) string {
	if len(name) <= maxHostname {
		return name
	}
	return strings.TrimRight(name[:maxHostname], "-.")
}

// kernelHostname is the name for the pod's UTS namespace: the host name, or with setHostnameAsFQDN also the domain.
func kernelHostname(pod *v1.Pod, name, domain string) (string, error) {
	if domain == "" || !podspec.IsTrue(pod.Spec.SetHostnameAsFQDN) {
		return name, nil
	}
	fqdn := name + "." + domain
	if len(fqdn) > maxNodename {
		return "", fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (%d characters is the max, %d characters requested); use shorter names or leave setHostnameAsFQDN out",
			fqdn, maxNodename, len(fqdn))
	}
	return fqdn, nil
}

// hostsFile is the managed /etc/hosts of a pod with its own network.
func hostsFile(addrs []netip.Addr, name, domain string, aliases []v1.HostAlias) []byte {
	var b bytes.Buffer
	// Upstream's tests and users recognize a managed file by its first line.
	b.WriteString("# Kubernetes-managed hosts file.\n" +
		"127.0.0.1\tlocalhost\n" +
		"::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\n" +
		"fe00::0\tip6-mcastprefix\n" +
		"fe00::1\tip6-allnodes\n" +
		"fe00::2\tip6-allrouters\n")
	names := name
	if domain != "" {
		names = name + "." + domain + "\t" + name
	}
	for _, a := range addrs {
		fmt.Fprintf(&b, "%s\t%s\n", a, names)
	}
	writeAliases(&b, aliases)
	return b.Bytes()
}

// hostNetworkHostsFile is the managed /etc/hosts of a pod with hostNetwork: the host's own file plus the aliases.
func hostNetworkHostsFile(host []byte, aliases []v1.HostAlias) []byte {
	var b bytes.Buffer
	b.WriteString("# Kubernetes-managed hosts file (host network).\n")
	b.Write(host)
	if len(host) > 0 && host[len(host)-1] != '\n' {
		b.WriteByte('\n')
	}
	writeAliases(&b, aliases)
	return b.Bytes()
}

func writeAliases(b *bytes.Buffer, aliases []v1.HostAlias) {
	if len(aliases) == 0 {
		return
	}
	b.WriteString("\n# Entries added by HostAliases.\n")
	for _, a := range aliases {
		fmt.Fprintf(b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
	}
}
