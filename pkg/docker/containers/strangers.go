package containers

import (
	"sync"

	"k8s.io/klog/v2"

	"github.com/winkube/winkube/pkg/docker/engine"
)

// maxTold is how many strangers are logged individually.
const maxTold = 20

// strangers are the containers that wrongly claim to belong to a pod: what is wrong with each, by id.
type strangers struct {
	mu     sync.Mutex
	logged map[string]error
}

// log logs each container of found once while it exists. It keeps found.
func (s *strangers) log(found map[string]error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, why := range found {
		if _, logged := s.logged[id]; !logged && len(found) <= maxTold {
			klog.InfoS("Ignoring a container with the labels of a pod: this kubelet did not create it", "container", engine.ShortID(id), "why", why)
		}
	}
	if len(found) > maxTold && len(s.logged) <= maxTold {
		klog.InfoS("Ignoring containers with the labels of pods: this kubelet did not create them", "containers", len(found))
	}
	s.logged = found
}
