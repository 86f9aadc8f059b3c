package csi

import (
	"errors"

	v1 "k8s.io/api/core/v1"
)

// step is one thing to be done for a volume of a pod. Each can be repeated.
type step string

const (
	recordPod    step = "record pod"     // note on disk that the pod uses the volume
	recordVolume step = "record volume"  // note on disk that the volume is staged on this node
	stage        step = "NodeStage"      // call
	publish      step = "NodePublish"    // call
	giveGroup    step = "fsGroup"        // give the volume to the pod's fsGroup
	mark         step = "mark"           // note on disk that the volume is ready for the pod
	unpublish    step = "NodeUnpublish"  // call
	unmountPod   step = "unmount"        // what the driver has left mounted for the pod
	unstage      step = "NodeUnstage"    // call
	unmountStage step = "unmount staged" // what the driver has left mounted for the node
	forgetVolume step = "forget volume"  // delete what recordVolume wrote
	forgetPod    step = "forget pod"     // delete what recordPod wrote
)

// seen is what is known of a volume for a pod: from disk, the mount table and, where it says so, this life of the agent.
type seen struct {
	// ready says that the volume was published for the pod, with everything that belongs to it, and still is.
	ready bool
	// staged says that NodeStage has succeeded in this life, and that what it mounted is still there.
	staged bool
	// own and recorded say that the pod's record of the volume, and the node's, are on disk.
	own, recorded bool
	// others are the other pods that the disk says use the volume.
	others []string
	// twin says that the pod itself uses the staged volume under another name, too.
	twin bool
}

// can is what a driver and a pod have that a plan depends on.
type can struct {
	stage bool // the driver has STAGE_UNSTAGE_VOLUME
	group bool // the agent changes groups
}

// bringUp returns the steps that make a volume ready for a pod. It is pure.
//
// The pod's record comes before everything else, so that whatever a killed agent leaves can be found by the pods' directories. For a device it
// comes second, because upstream keeps the name of the driver beside the volume.
func bringUp(d described, r rules, c can, s seen) ([]step, error) {
	if d.mode == v1.ReadWriteOncePod && len(s.others) > 0 {
		return nil, errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod")
	}
	if s.ready {
		if r.republish {
			return []step{publish}, nil
		}
		return nil, nil
	}
	var steps []step
	switch {
	case d.block:
		steps = append(steps, recordVolume, recordPod)
	case !d.ephemeral && c.stage:
		steps = append(steps, recordPod, recordVolume)
	default:
		steps = append(steps, recordPod)
	}
	if !d.ephemeral && c.stage && !s.staged {
		steps = append(steps, stage)
	}
	steps = append(steps, publish)
	if c.group {
		steps = append(steps, giveGroup)
	}
	return append(steps, mark), nil
}

// takeDown returns the steps that undo bringUp, however far it got: for the pod, then for the node, if no pod needs the volume any more, and then
// the deletion of the pod's record. That comes last, so that the agent finds the rest after a kill. A pod does not wait for the node's steps: if they
// fail, the node's record stays for Run. It is pure.
func takeDown(s seen) (ofPod, ofNode, end []step) {
	if len(s.others) == 0 && !s.twin && s.recorded {
		ofNode = takeDownOrphan()
	}
	return []step{unpublish, unmountPod}, ofNode, []step{forgetPod}
}

// takeDownOrphan returns the steps that unstage a volume that no pod uses. It is pure.
func takeDownOrphan() []step { return []step{unstage, unmountStage, forgetVolume} }

// afterFailure says which records to delete when a call of bringUp was refused for good: the volume is then as it was before, and a driver that
// does not know it need not answer for it at the pod's end. mounted says that something is mounted where the call should have put it. It is pure.
func afterFailure(d described, c can, failed step, final, mounted bool, before seen) []step {
	if !final || mounted || before.ready || before.own {
		return nil
	}
	alone := len(before.others) == 0 && !before.recorded
	switch {
	case failed == stage && alone:
		return []step{forgetVolume, forgetPod}
	case failed == publish && !c.stage && d.block && alone:
		return []step{forgetVolume, forgetPod}
	case failed == publish && !c.stage:
		return []step{forgetPod}
	}
	return nil
}
