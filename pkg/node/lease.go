package node

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/apimachinery/lease"
)

// keepLease renews the Lease, which shows the control plane that this node is alive, until ctx ends. It runs independently of the status,
// so that a slow engine never makes the node look dead.
func (m *Manager) keepLease(ctx context.Context) {
	lease.NewController(m.parts.Clock, m.parts.Client, m.config.Name, int32(m.config.LeaseDuration.Seconds()), nil,
		m.config.LeaseDuration/4, m.config.Name, v1.NamespaceNodeLease, func(l *coordinationv1.Lease) error { return m.own(ctx, l) }).Run(ctx)
}

// own makes our Node the owner of a Lease, so that the Lease is deleted with the Node. An existing owner stays.
func (m *Manager) own(ctx context.Context, l *coordinationv1.Lease) error {
	if len(l.OwnerReferences) > 0 {
		return nil
	}
	node, err := m.parts.Client.CoreV1().Nodes().Get(ctx, m.config.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("cannot find the owner of lease %s: %w", l.Name, err)
	}
	l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	return nil
}
