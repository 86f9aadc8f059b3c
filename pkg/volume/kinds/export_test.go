package kinds

import (
	"time"

	"github.com/winkube/winkube/pkg/command"
	"github.com/winkube/winkube/pkg/volume"
)

// NewNFS is the kind of NFS volumes that forces an unmount after that time.
func NewNFS(host *volume.Host, run command.Runner, patience time.Duration) volume.Kind {
	k := newNFS(host, run)
	k.patience = patience
	return k
}
