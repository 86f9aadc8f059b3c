package node

import (
	"context"
	"fmt"
	"math"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// Pauses after a renewal that failed.
const (
	firstRenewal   = 200 * time.Millisecond
	longestRenewal = 7 * time.Second
)

// leaseJitter is the fraction by which a pause between renewals is longer at most, so that nodes that started together do not renew together.
const leaseJitter = 0.04

// keepLease renews the Lease, which shows the control plane that this node is alive, until ctx ends: four times in its duration. It runs
// independently of the status, so that a slow engine never makes the node look dead.
func (m *Manager) keepLease(ctx context.Context) {
	begin := wait.Backoff{Duration: firstRenewal, Factor: 2, Cap: longestRenewal, Steps: math.MaxInt}
	retry := begin
	var last *coordinationv1.Lease // as the API server has it; nil: unknown
	for ctx.Err() == nil {
		pause := wait.Jitter(m.config.LeaseDuration/4, leaseJitter)
		renewed, err := m.renewLease(ctx, last)
		if last = renewed; err == nil {
			retry = begin
		} else if pause = min(pause, retry.Step()); ctx.Err() == nil {
			klog.ErrorS(err, "Cannot renew the node's lease; retrying", "node", m.config.Name, "in", pause)
		}
		select {
		case <-ctx.Done():
		case <-m.parts.Clock.After(pause):
		}
	}
}

// renewLease writes that the node is alive now into the Lease, or creates it, and returns it. last saves a read; with an error, nil is returned.
func (m *Manager) renewLease(ctx context.Context, last *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	leases := m.parts.Client.Leases(v1.NamespaceNodeLease)
	if last == nil {
		existing, err := leases.Get(ctx, m.config.Name, metav1.GetOptions{})
		switch {
		case err == nil:
			last = existing
		case !apierrors.IsNotFound(err):
			return nil, err
		}
	}
	if last == nil {
		next := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: m.config.Name, Namespace: v1.NamespaceNodeLease}}
		if err := m.own(ctx, next); err != nil {
			return nil, err
		}
		m.stamp(next)
		created, err := leases.Create(ctx, next, metav1.CreateOptions{})
		if err != nil {
			return nil, err
		}
		return created, nil
	}
	next := last.DeepCopy()
	if err := m.own(ctx, next); err != nil { // it is alive all the same
		klog.V(2).InfoS("The node's lease has no owner", "node", m.config.Name, "reason", err.Error())
	}
	m.stamp(next)
	updated, err := leases.Update(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	return updated, nil
}

// stamp says that this node holds the Lease from now on.
func (m *Manager) stamp(l *coordinationv1.Lease) {
	holder, seconds, now := m.config.Name, int32(m.config.LeaseDuration.Seconds()), metav1.NewMicroTime(m.parts.Clock.Now())
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = &holder, &seconds, &now
}

// own makes our Node the owner of a Lease, so that the Lease is deleted with the Node. An existing owner stays.
func (m *Manager) own(ctx context.Context, l *coordinationv1.Lease) error {
	if len(l.OwnerReferences) > 0 {
		return nil
	}
	node, err := m.parts.Client.Nodes().Get(ctx, m.config.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("cannot find the owner of lease %s: %w", l.Name, err)
	}
	l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	return nil
}
