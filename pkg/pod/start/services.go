package start

import (
	"cmp"
	"net"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/winkube/winkube/pkg/pod"
)

// linkedServices selects the services for a pod's environment: those of the pod's namespace unless links are off, and always the service
// kubernetes in the namespace default, which in-cluster clients need. A service of that name in the pod's namespace hides it.
func linkedServices(own, defaults []*v1.Service, links bool) []*v1.Service {
	var out []*v1.Service
	hidden := false
	add := func(s *v1.Service) {
		if ip := s.Spec.ClusterIP; ip != "" && ip != v1.ClusterIPNone && len(s.Spec.Ports) > 0 {
			out = append(out, s)
			hidden = hidden || s.Name == "kubernetes"
		}
	}
	if links {
		for _, s := range own {
			add(s)
		}
	}
	for _, s := range defaults {
		if s.Name == "kubernetes" && !hidden {
			add(s)
		}
	}
	slices.SortFunc(out, func(a, b *v1.Service) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// serviceEnv is the environment that lets a container find services: NAME_SERVICE_HOST, NAME_SERVICE_PORT, and the names of Docker's
// container links. (Documented for Services as "environment variables".)
func serviceEnv(services []*v1.Service) []pod.Env {
	var out []pod.Env
	for _, s := range services {
		name, ip := envName(s.Name), s.Spec.ClusterIP
		port := func(i int) string { return strconv.Itoa(int(s.Spec.Ports[i].Port)) }
		out = append(out, pod.Env{Name: name + "_SERVICE_HOST", Value: ip}, pod.Env{Name: name + "_SERVICE_PORT", Value: port(0)})
		for i := range s.Spec.Ports {
			if n := s.Spec.Ports[i].Name; n != "" {
				out = append(out, pod.Env{Name: name + "_SERVICE_PORT_" + envName(n), Value: port(i)})
			}
		}
		for i := range s.Spec.Ports {
			protocol := cmp.Or(s.Spec.Ports[i].Protocol, v1.ProtocolTCP)
			lower := strings.ToLower(string(protocol))
			url := lower + "://" + net.JoinHostPort(ip, port(i))
			if i == 0 {
				out = append(out, pod.Env{Name: name + "_PORT", Value: url})
			}
			link := name + "_PORT_" + port(i) + "_" + strings.ToUpper(string(protocol))
			out = append(out, pod.Env{Name: link, Value: url}, pod.Env{Name: link + "_PROTO", Value: lower}, pod.Env{Name: link + "_PORT", Value: port(i)}, pod.Env{Name: link + "_ADDR", Value: ip})
		}
	}
	return out
}

func envName(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "-", "_")) }
