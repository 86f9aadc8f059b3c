package pod

import (
	"time"

	"github.com/winkube/winkube/pkg/podspec"
)

// Action is the verb of a Step.
type Action string

const (
	CreateSandbox   Action = "create-sandbox"
	StopSandbox     Action = "stop-sandbox" // at once: it has nothing to lose
	RemoveSandbox   Action = "remove-sandbox"
	StartContainer  Action = "start-container" // create and start
	StopContainer   Action = "stop-container"  // stop signal, Grace, kill
	RemoveContainer Action = "remove-container"
	AttachNetwork   Action = "attach-network"   // give a sandbox or container its network; the worker does it by Attacher
	UpdateContainer Action = "update-container" // hold it to other Resources while it runs
	UpdatePod       Action = "update-pod"       // likewise the pod as a whole; the worker does it, the Runtime never sees it
)

// Step is one thing for the Runtime to do. Steps of one Plan stand in the order in which they may begin.
type Step struct {
	Action    Action
	Container string        // name in the spec; "" for a sandbox
	Kind      podspec.Kind  // of Container
	ID        string        // engine's id, for stop and remove
	Attempt   int           // for create and start
	Grace     time.Duration // for stop-container; 0: kill at once
	Reason    string        // why, in words for logs, events and `kubelet plan`

	Sandbox *SandboxInputs `json:",omitempty"` // create-sandbox: filled by Resolve just before the step runs
	Inputs  *Inputs        `json:",omitempty"` // start-container: likewise

	Resources *podspec.Resources `json:",omitempty"` // update-container, update-pod
}
