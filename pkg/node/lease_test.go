package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/winkube/winkube/pkg/clientset/clientsettest"
)

// leases runs keepLease for a time against a fake API server whose reactions to writes and reads of leases each test adds, and returns the
// requests with their times since the start.
func leases(t *testing.T, client *clientsettest.Clientset, during time.Duration) []string {
	t.Helper()
	begin := time.Now()
	var said []string
	client.PrependReactor("*", "leases", func(action clienttesting.Action) (bool, runtime.Object, error) {
		said = append(said, fmt.Sprintf("%s %s", time.Since(begin).Round(100*time.Millisecond), action.GetVerb()))
		return false, nil, nil
	})
	m := &Manager{parts: Parts{Client: client, Clock: clock.RealClock{}}, config: Config{Name: "n1", LeaseDuration: 40 * time.Second}}
	ctx, cancel := context.WithTimeout(t.Context(), during)
	defer cancel()
	m.keepLease(ctx)
	return said
}

func leaseOf(t *testing.T, client *clientsettest.Clientset) *coordinationv1.Lease {
	t.Helper()
	l, err := client.Leases(v1.NamespaceNodeLease).Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestLease: the Lease is created with its owner, and then renewed without being read again, four times in its duration.
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientsettest.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u"}})
		said := leases(t, client, 31500*time.Millisecond)
		if len(said) != 5 || said[0] != "0s get" || said[1] != "0s create" || !strings.HasSuffix(said[4], " update") || !strings.HasPrefix(said[4], "30.") && !strings.HasPrefix(said[4], "31.") {
			t.Errorf("requests %q", said)
		}
		l := leaseOf(t, client)
		if age := time.Since(l.Spec.RenewTime.Time); *l.Spec.HolderIdentity != "n1" || *l.Spec.LeaseDurationSeconds != 40 || age > 2*time.Second ||
			len(l.OwnerReferences) != 1 || l.OwnerReferences[0].UID != "u" || l.OwnerReferences[0].Kind != "Node" {
			t.Errorf("%+v, renewed %s ago", l, age)
		}
	})
}

// TestLeaseOfBefore: a Lease that exists is renewed. One without an owner gets it, another owner stays.
func TestLeaseOfBefore(t *testing.T) {
	for name, owners := range map[string][]metav1.OwnerReference{"u": nil, "other": {{APIVersion: "v1", Kind: "Node", Name: "n1", UID: "other"}}} {
		synctest.Test(t, func(t *testing.T) {
			client := clientsettest.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u"}},
				&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceNodeLease, Name: "n1", OwnerReferences: owners}})
			if said := leases(t, client, time.Second); strings.Join(said, ", ") != "0s get, 0s update" {
				t.Errorf("requests %q", said)
			}
			if l := leaseOf(t, client); len(l.OwnerReferences) != 1 || string(l.OwnerReferences[0].UID) != name || l.Spec.RenewTime == nil {
				t.Errorf("%+v", l)
			}
		})
	}
}

// TestLeaseFails: an outage is retried with longer and longer pauses, never longer than between renewals. After a conflict the Lease is read
// again, and after it was deleted it is created.
func TestLeaseFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientsettest.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u"}})
		down := true
		client.PrependReactor("*", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return down, nil, errors.New("connection refused")
		})
		said := leases(t, client, 30*time.Second)
		if got := strings.Join(said, ", "); got != "0s get, 200ms get, 600ms get, 1.4s get, 3s get, 6.2s get, 12.6s get, 19.6s get, 26.6s get" {
			t.Errorf("during an outage: %s", got)
		}
		down = false
		resource, conflicts := schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, 0
		client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			conflicts++
			return conflicts == 1, nil, apierrors.NewConflict(resource, "n1", errors.New("changed"))
		})
		said = leases(t, client, 12*time.Second)
		if got := strings.Join(said, ", "); !strings.HasPrefix(got, "0s get, 0s create, 10") || !strings.Contains(got, " update, 10") || !strings.Contains(got, " get, 10") || !strings.HasSuffix(got, " update") {
			t.Errorf("with a conflict: %s", got)
		}
		client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			err := client.Tracker().Delete(coordinationv1.SchemeGroupVersion.WithResource("leases"), v1.NamespaceNodeLease, "n1")
			return err == nil, nil, apierrors.NewNotFound(resource, "n1")
		})
		said = leases(t, client, 5*time.Second)
		if got := strings.Join(said, ", "); got != "0s get, 0s update, 200ms get, 200ms create" {
			t.Errorf("after a deletion: %s", got)
		}
	})
}

// TestLeaseWithoutNode: no Lease is created that would outlive its Node.
func TestLeaseWithoutNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientsettest.NewClientset()
		said := leases(t, client, time.Second)
		if got := strings.Join(said, ", "); got != "0s get, 200ms get, 600ms get" {
			t.Errorf("requests %s", got)
		}
	})
}
