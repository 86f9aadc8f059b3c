package pod

import (
	"time"

	"github.com/winkube/winkube/pkg/podspec"
)

// Action is the verb of a Step, which a Runtime carries out. The worker's own steps are of type plan.WorkerStep.
type Action string

// Actions.
const (
	CreateSandbox   Action = "create-sandbox"
	StopSandbox     Action = "stop-sandbox" // immediately: it has no state to save
	RemoveSandbox   Action = "remove-sandbox"
	StartContainer  Action = "start-container" // create and start
	StopContainer   Action = "stop-container"  // stop signal, Grace, kill
	RemoveContainer Action = "remove-container"
	UpdateContainer Action = "update-container" // apply other Resources while it runs
)

// Step is one thing for the Runtime to do.
type Step struct {
	Action    Action
	Container string        // name in the spec; "" for a sandbox
	Kind      podspec.Kind  // of Container
	ID        string        // engine's id, for stop and remove
	Attempt   int           // for create and start
	Grace     time.Duration // for stop-container; 0: kill immediately
	Reason    string        // why, in words for logs, events and `kubelet plan`

	Sandbox *SandboxInputs `json:",omitempty"` // create-sandbox: set just before the step runs
	Inputs  *Inputs        `json:",omitempty"` // start-container: likewise

	Resources *podspec.Resources `json:",omitempty"` // update-container
}
