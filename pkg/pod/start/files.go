package start

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/pod"
	"github.com/winkube/winkube/pkg/podspec"
)

// Limits for host files and pod files that are read completely.
const (
	maxConfigFile = 1 << 20
	// resolvedConf is where systemd-resolved lists the servers behind its loopback stub.
	resolvedConf = "/run/systemd/resolve/resolv.conf"
)

// dns decides the pod's resolver configuration from the current version of the host's file.
func (c Config) dns(p *v1.Pod) (pod.DNS, []dnsWarning, error) {
	in := dnsInputs{
		windows: c.Platform.OS == "windows", servers: c.ClusterDNS, domain: c.ClusterDomain, hostShared: p.Spec.HostNetwork,
	}
	if c.Cluster != nil {
		in.servers, in.domain = c.Cluster.DNS()
	}
	for _, ip := range c.HostIPs() {
		in.hostIPv4 = in.hostIPv4 || ip.Is4()
		in.hostIPv6 = in.hostIPv6 || ip.Is6()
	}
	if c.ResolvConf != "" {
		text, err := readHead(os.Open(c.ResolvConf))
		if err != nil {
			return pod.DNS{}, nil, fmt.Errorf("cannot read resolver configuration (resolvConf): %w", err)
		}
		host := parseResolvConf(text)
		if len(host.Servers) > 0 && len(usableServers(host.Servers, in.hostShared)) == 0 {
			if text, err := readHead(os.Open(resolvedConf)); err == nil {
				host = parseResolvConf(text)
			}
		}
		in.host = &host
	}
	dns, warnings := podDNS(p, in)
	return dns, warnings, nil
}

// DNS is the pod's resolver configuration, for the code that applies it to the pod's network (Windows). It sends no warnings; creating the
// sandbox does.
func (c Config) DNS(pod *v1.Pod) (pod.DNS, error) {
	dns, _, err := c.dns(pod)
	return dns, err
}

// await waits until the cluster's DNS is known, if the pod needs it. Static pods do not wait: the cluster may need them first.
func (c Config) await(ctx context.Context, p *v1.Pod) error {
	policy := p.Spec.DNSPolicy
	own := policy == v1.DNSNone || policy == v1.DNSDefault || policy == v1.DNSClusterFirst && p.Spec.HostNetwork
	if c.Cluster == nil || podspec.IsStatic(p) || own && p.Spec.Subdomain == "" {
		return nil
	}
	return c.Cluster.Wait(ctx)
}

// clusterDomain is the cluster's domain, as far as it is known.
func (c Config) clusterDomain() string {
	if c.Cluster == nil {
		return c.ClusterDomain
	}
	_, domain := c.Cluster.DNS()
	return domain
}

// shareNames sets the pod's search list on a container that does not get it with the shared network (Windows).
func (r *Resolver) shareNames(p *v1.Pod, in *pod.Inputs) error {
	if r.cfg.Platform.OS != "windows" || p.Spec.HostNetwork {
		return nil
	}
	dns, err := r.cfg.DNS(p)
	in.Searches = dns.Searches
	return err
}

// readHead reads at most maxConfigFile bytes of a file that has just been opened.
func readHead(file *os.File, err error) (string, error) {
	if err != nil {
		return "", err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxConfigFile))
	return string(data), err
}

// files writes the container's hosts, resolv.conf and termination log, unless it mounts a volume at their paths.
func (r *Resolver) files(pod *v1.Pod, container *v1.Container, at pod.Attempt, in *pod.Inputs) error {
	own := map[string]bool{}
	for _, m := range container.VolumeMounts {
		own[path.Clean(m.MountPath)] = true
	}
	if !own["/etc/hosts"] {
		hosts, err := r.hosts(pod, at)
		if err != nil {
			return err
		}
		file, err := r.writeFile(pod, "etc-hosts", "/etc/hosts", hosts)
		if err != nil {
			return err
		}
		in.Files = append(in.Files, file)
	}
	if !own["/etc/resolv.conf"] {
		dns, _, err := r.cfg.dns(pod)
		if err != nil {
			return err
		}
		file, err := r.writeFile(pod, "resolv.conf", "/etc/resolv.conf", resolvConf(dns))
		if err != nil {
			return err
		}
		in.Files = append(in.Files, file)
	}
	target := cmp.Or(container.TerminationMessagePath, v1.TerminationMessagePathDefault)
	if !own[path.Clean(target)] {
		log, err := r.parts.Volumes.WriteFile(pod.UID, messageDir(container)+"/"+messageName(at.Number), nil, 0o666)
		if err != nil {
			return fmt.Errorf("cannot create termination log: %w", err)
		}
		r.dropMessages(pod, container, at)
		in.TerminationLog = log
	}
	return nil
}

// messageDir is the directory of a container's termination messages below the pod's directory; messageName is the file of one attempt.
func messageDir(container *v1.Container) string { return "containers/" + container.Name }

func messageName(attempt int) string { return fmt.Sprintf("termination-%d", attempt) }

// dropMessages removes the termination messages that no status shows any more: those before the last attempt's. Containers can write any
// amount to them.
func (r *Resolver) dropMessages(pod *v1.Pod, container *v1.Container, at pod.Attempt) {
	err := r.parts.Volumes.KeepFiles(pod.UID, messageDir(container), messageName(at.Number), messageName(at.Number-1))
	if err != nil {
		klog.ErrorS(err, "Cannot remove old termination messages", "pod", klog.KObj(pod), "container", container.Name)
	}
}

func (r *Resolver) hosts(pod *v1.Pod, at pod.Attempt) ([]byte, error) {
	if pod.Spec.HostNetwork {
		host, err := os.ReadFile(r.hostsPath)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("cannot read the host's hosts file: %w", err)
		}
		return hostNetworkHostsFile(host, pod.Spec.HostAliases), nil
	}
	name, domain, err := podHostname(pod, r.cfg.clusterDomain())
	if err != nil {
		return nil, err
	}
	return hostsFile(at.Addresses, name, domain, pod.Spec.HostAliases), nil
}

func (r *Resolver) writeFile(p *v1.Pod, name, target string, data []byte) (pod.File, error) {
	host, err := r.parts.Volumes.WriteFile(p.UID, name, data, 0o644)
	if err != nil {
		return pod.File{}, fmt.Errorf("cannot write %s of the pod: %w", target, err)
	}
	return pod.File{HostPath: host, ContainerPath: target}, nil
}

// readVolumeFile reads a file of a volume for fileKeyRef. It does not follow links that lead out of the volume.
func readVolumeFile(paths map[string]string, volume, name string) (text string, found bool, err error) {
	dir, ok := paths[volume]
	if !ok {
		return "", false, fmt.Errorf("cannot find the volume %q referenced by FileKeyRef", volume)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", false, fmt.Errorf("cannot open volume %q: %w", volume, errors.Unwrap(err))
	}
	defer root.Close()
	// The file may be a named pipe: opening it must not wait for a writer.
	file, err := root.OpenFile(filepath.FromSlash(name), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("cannot open environment file %q of volume %q: %w", name, volume, errors.Unwrap(err))
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return "", false, fmt.Errorf("cannot read environment file %q of volume %q: it is not a regular file", name, volume)
	}
	var data bytes.Buffer
	if _, err := io.Copy(&data, io.LimitReader(file, maxConfigFile+1)); err != nil {
		return "", false, fmt.Errorf("cannot read environment file %q of volume %q: %w", name, volume, errors.Unwrap(err))
	}
	if data.Len() > maxConfigFile {
		return "", false, fmt.Errorf("environment file %q of volume %q has more than %d bytes", name, volume, maxConfigFile)
	}
	return data.String(), true, nil
}
